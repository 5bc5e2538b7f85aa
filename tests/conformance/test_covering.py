"""Globs made from samples match all that they must and nothing that they must not, and read well."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import globs
from conformance.covering import cover

IDS = st.builds(
    "{}:{}:{}:{}:{}:samples#{}".format,
    st.just("op"),
    st.sampled_from(["sort", "sum", "a.b", "topk", "max", "min"]),
    st.sampled_from(["int64", "float16"]),
    st.sampled_from(["static", "dynamic"]),
    st.sampled_from(["fwd", "bwd"]),
    st.integers(0, 3),
)


def matched(patterns: list[str], sample: str) -> bool:
    return any(globs.matches(p, sample if "#" in p else sample.partition("#")[0]) for p in patterns)


@given(st.sets(IDS, max_size=25), st.sets(IDS, max_size=25))
def test_all_wanted_and_none_else(wanted: set[str], others: set[str]) -> None:
    avoid = others - wanted
    patterns = cover(wanted, avoid)
    assert all(matched(patterns, sample) for sample in wanted)
    assert not any(matched(patterns, sample) for sample in avoid)
    assert len(patterns) <= len(wanted)
    assert patterns == cover(sorted(wanted), sorted(avoid))


S = "op:sort:int64:static:fwd:samples"


@pytest.mark.parametrize(
    ("wanted", "avoid", "expected"),
    [
        ([f"{S}#0"], [], ["op:sort:int64:*"]),
        ([f"{S}#0", f"{S}#1"], [f"{S}#2"], ["op:sort:int64:*#0", "op:sort:int64:*#1"]),
        ([f"{S}#0"], ["op:sort:int64:dynamic:fwd:samples#0"], ["op:sort:int64:static:*"]),
        ([f"{S}#0"], ["op:sort:int64:static:bwd:samples#0"], ["op:sort:int64:*:fwd:*"]),
        ([f"{S}#0", "op:sort:int32:static:fwd:samples#0"], [], ["op:sort:*"]),
        (
            [f"{S}#0", "op:sort:int32:static:fwd:samples#0"],
            ["op:sort:float16:static:fwd:samples#0"],
            ["op:sort:int32:*", "op:sort:int64:*"],
        ),
        ([f"{S}#0", "op:topk:int64:static:fwd:samples#0"], [], ["op:sort:int64:*", "op:topk:int64:*"]),
        (
            [f"op:{name}:int64:static:fwd:samples#0" for name in "abcde"],
            ["op:a:float16:static:fwd:samples#0"],
            ["op:*:int64:*"],
        ),
        ([], ["x:y:z:static:fwd:l#0"], []),
    ],
)
def test_how_they_read(wanted: list[str], avoid: list[str], expected: list[str]) -> None:
    assert cover(wanted, avoid) == expected


def test_thousands_of_samples_take_moments() -> None:
    ids = [f"op:op{n % 500}:{d}:{m}:fwd:samples#{n % 7}" for n in range(1000) for d in ("f", "i") for m in ("s", "d")]
    wanted = [sample for n, sample in enumerate(ids) if n % 5 == 0]
    begun = time.process_time()
    patterns = cover(wanted, set(ids) - set(wanted))
    assert time.process_time() - begun < 10
    assert patterns
