"""What is seen of real compilations, and that seeing costs nothing."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from conformance import observe
from conformance.backends.eager import EagerBackend
from conformance.backends.protocol import BackendError
from conformance.backends.registry import find
from conformance.records import GraphBreak, Recompile, Record
from conformance.seen import Seen, merge

X = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def clean() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def seen_of(name: str, fn: Any, *calls: tuple, dynamic: bool | None = None) -> Seen:
    backend = find(name)
    backend.setup()
    with observe.observe(backend) as seen:
        compiled = backend.compile(fn, dynamic=dynamic)
        for args in calls:
            compiled(*args)
    return seen


def test_nothing_compiled_is_seen_of_eager() -> None:
    seen = seen_of("eager", torch.sin, (X,))
    assert (seen.graphs, seen.breaks, seen.recompiles, seen.compile_s) == (0, [], [], None)
    assert seen.kernels is None
    assert seen.peak_memory > 1 << 20


def test_breaks_have_a_reason_and_a_place() -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    seen = seen_of("dynamo", fn, (X,))
    (item,) = seen.breaks
    assert item.reason.startswith("Call to `torch._dynamo.graph_break()`")
    assert item.place == f"test_observe.py:{fn.__code__.co_firstlineno + 2}"
    assert item.count == 1
    assert seen.graphs == 2
    assert seen.break_count == 1


def test_recompiles_have_a_guard_and_a_place() -> None:
    def fn(x: Any) -> Any:
        return x + 1

    seen = seen_of("dynamo", fn, (X,), (X.double(),), (X.int(),))
    guards = {item.guard: item.count for item in seen.recompiles}
    assert guards == {
        "tensor 'x' dtype mismatch. expected Float, actual Double": 1,
        "tensor 'x' dtype mismatch. expected Double, actual Int": 1,
    }
    assert {item.place for item in seen.recompiles} == {f"test_observe.py:{fn.__code__.co_firstlineno}"}
    assert seen.graphs == 3


def test_guards_on_identities_are_the_same_in_each_process() -> None:
    def apply(f, x):
        return f(x)

    compiled = torch.compile(apply, backend="eager")
    with observe.observe(EagerBackend()) as seen:
        for f in (lambda x: x + 1, lambda x: x + 2):
            compiled(f, torch.ones(2))
    (again,) = seen.recompiles
    assert "___check" in again.guard
    assert not re.search(r"\d{6,}", again.guard)


def test_crossing_the_recompile_limit_is_said() -> None:
    with torch.compiler.config.patch(recompile_limit=1) if hasattr(torch.compiler.config, "patch") else pytest.skip(""):
        seen = seen_of("dynamo", lambda x: x + 1, (X,), (X.double(),))
    assert "recompile limit" in seen.notes


def test_a_graph_whose_analysis_restarts_counts_once() -> None:
    def fn(x: Any, scale: float) -> Any:  # a float argument is specialised after a first attempt
        return x * scale

    assert seen_of("compile:aot_eager", fn, (X, 1.5), dynamic=True).graphs == 1


def test_seconds_by_stage_add_up() -> None:
    seen = seen_of("compile:aot_eager", lambda x: torch.softmax(x, -1), (X,))
    assert set(seen.compile_stages_s) == {"capture", "autograd", "backend"}
    assert sum(seen.compile_stages_s.values()) == pytest.approx(seen.compile_s, rel=0.05)


def test_upstream_inductor_tells_what_it_lowered() -> None:
    seen = seen_of("inductor", lambda x: torch.softmax(x @ x.t(), -1), (X,))
    assert seen.kernels >= 1
    assert any(name.startswith("aten::mm") for name in seen.custom_kernels)
    assert {"aten::mm", "aten::amax", "aten::exp"} <= set(seen.lowered)
    assert {"capture", "autograd", "lower", "codegen"} == set(seen.compile_stages_s)


def test_what_comes_out_of_a_cache_is_not_claimed_to_be_lowered(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    backend = find("inductor", backend_options={"fx_graph_cache": True})
    backend.setup()
    found = []
    for _ in range(2):
        torch.compiler.reset()
        with observe.observe(backend) as seen:
            backend.compile(torch.tanh, dynamic=False)(X)
        found.append(seen)
    first, second = found
    assert (first.cache_hits, first.cache_misses) == (0, 1)
    assert first.lowered == {"aten::tanh": 1}
    assert second.cache_hits == 1
    assert second.lowered is None


def test_an_exception_passes_and_what_was_seen_stays() -> None:
    def fails(x: Any) -> Any:
        torch.compile(torch.sin, backend="eager")(x)
        raise ZeroDivisionError

    watching = observe.observe(find("dynamo"))
    with pytest.raises(ZeroDivisionError), watching as seen:
        fails(X)
    assert seen.graphs == 1


class Telling(EagerBackend):
    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told

    def observe(self) -> Any:
        from contextlib import nullcontext

        return nullcontext(self.told)


def test_what_a_backend_tells_is_merged_and_checked() -> None:
    told = {"kernels": 3, "fallbacks": {"aten::sort": 1}, "notes": {"mode": "fast"}}
    with observe.observe(Telling(told)) as seen:
        pass
    assert (seen.kernels, seen.fallbacks, seen.notes) == (3, {"aten::sort": 1}, {"mode": "fast"})
    with pytest.raises(BackendError, match=r"observe\(\): Expected `int"), observe.observe(Telling({"kernels": "3"})):
        pass


def test_fields_are_those_of_a_record() -> None:
    fields = set(Seen.__struct_fields__) - {"transfers", "bytes_moved", "notes"}
    assert fields <= set(Record.__struct_fields__)
    assert Seen(kernels=3).record_fields()["kernels"] == 3
    assert "lowered" not in Seen().record_fields()


def test_parts_are_merged() -> None:
    one = Seen(
        graphs=1,
        breaks=[GraphBreak("a", "b:1")],
        recompiles=[Recompile("g")],
        fallbacks={"x": 1},
        compile_s=1.0,
        peak_memory=5,
        notes={"n": "1"},
    )
    two = Seen(graphs=2, breaks=[GraphBreak("a", "b:1")], fallbacks={"x": 2, "y": 1}, peak_memory=3)
    merged = merge([one, two])
    assert (merged.graphs, merged.compile_s, merged.peak_memory) == (3, 1.0, 5)
    assert merged.breaks == [GraphBreak("a", "b:1", 2)]
    assert merged.recompiles == [Recompile("g")]
    assert merged.fallbacks == {"x": 3, "y": 1}
    assert merged.kernels is None
    assert merged.notes == {"n": "1"}
    assert merge([one]) is one


def test_eager_ops_are_those_below_autograd() -> None:
    assert observe.eager_ops(lambda x: torch.softmax(x @ x.t(), -1).add_(1), (X,)) == {
        "aten::t": 1,
        "aten::mm": 1,
        "aten::_softmax": 1,
        "aten::add_.Tensor": 1,
    }


@pytest.mark.parametrize(
    ("path", "short"),
    [(torch.nn.functional.__file__, "torch/nn/functional.py"), ("/no/package/here.py", "here.py")],
)
def test_places_are_short(path: str, short: str) -> None:
    assert observe.shorten(path) == short


def test_observing_costs_less_than_a_millisecond() -> None:
    backend = EagerBackend()

    def once() -> float:
        started = time.perf_counter()
        for _ in range(20):
            with observe.observe(backend):
                pass
        return (time.perf_counter() - started) / 20

    assert min(once() for _ in range(10)) < 1e-3
