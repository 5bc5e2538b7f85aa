"""A sample is found again by its id, or it is said what is not there."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from conformance import rerun, suites
from conformance.cases import Case, Direction, Options, ShapeMode, Tier

CASE = Case("op", "add", "float16", ShapeMode.STATIC, Direction.FORWARD)


class Suite:
    name = "fake"
    kind = "op"

    def samples(self, case: Case, options: Options) -> Iterator[SimpleNamespace]:
        if case.subject == "unknown":
            raise ValueError("no op 'unknown'")
        first = 3 if options.tier is Tier.SMOKE else 0  # the first telling one
        yield from (
            SimpleNamespace(index=n, seed=options.seed) for n in range(first, 5 if case.subject == "add" else 0)
        )


def test_by_index_by_case_and_by_seed() -> None:
    assert rerun.sample_of(Suite(), CASE, 4, Options()).index == 4
    found = rerun.sample_of(Suite(), CASE, None, Options(seed=7))
    assert (found.index, found.seed) == (3, 7)


@pytest.mark.parametrize(
    ("subject", "index", "complaint"),
    [
        ("add", 9, "op:add:float16:static:fwd:samples has no sample 9: the last one is 4"),
        ("none", 0, "the suite 'fake' has no sample for op:none:"),
        ("unknown", 0, "op:unknown:float16:static:fwd:samples: no op 'unknown'"),
    ],
)
def test_what_is_not_there(subject: str, index: int, complaint: str) -> None:
    case = Case("op", subject, "float16", ShapeMode.STATIC, Direction.FORWARD)
    with pytest.raises(rerun.NotThere, match=complaint):
        rerun.sample_of(Suite(), case, index, Options())


def test_ids() -> None:
    assert rerun.parse("op:add:float16:static:fwd:samples#2") == (CASE, 2)
    assert rerun.parse("op:add:float16:static:fwd:samples") == (CASE, None)
    with pytest.raises(rerun.NotThere, match="is not a case id; one looks like"):
        rerun.parse("add")


def test_the_suite_of_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "names", lambda: ["fake"])
    monkeypatch.setattr(suites, "find", lambda name: Suite())
    assert rerun.suite_of(CASE).name == "fake"
    other = Case("model", "m", "float16", ShapeMode.STATIC, Direction.FORWARD)
    with pytest.raises(rerun.NotThere, match=r"no installed suite has cases of the kind 'model' \(there are: op\)"):
        rerun.suite_of(other)
