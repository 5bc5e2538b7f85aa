"""Each damage does one thing, the judge catches it, and a choice depends on the sample's id alone."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from conformance import calls
from conformance.backends.damages import DAMAGES
from conformance.backends.mutant import NAMES, MutantBackend
from conformance.backends.registry import capabilities
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.judgement.judge import judge
from conformance.reference import make_reference

X = torch.tensor([[0.5, -2.0, 0.25], [0.0, 1.0, 4.0]])
Y = torch.tensor([[1.5, -2.0, 0.75], [3.0, 1.0, 8.0]])


def increment(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def run(damage: str, fn: Any, *args: Any, direction: str = "fwd", replays: Any = ()) -> tuple[Any, dict[str, str]]:
    """The judgement of a damaged call, and the mutant's notes."""
    case = Case("op", "case", "float32", ShapeMode.STATIC, Direction(direction))
    sample = Sample(0, fn, args, {}, NumericalClass.ELEMENTWISE, "", "", replays=replays)
    reference = make_reference(case, sample)
    backend = MutantBackend({"damage": damage})
    backend.begin(case.sample_id(0), calls=1 + len(replays))
    with backend.observe() as seen:
        result = calls.run_sample(
            backend.compile(fn, dynamic=False), sample, direction=direction, cotangents=reference.cotangents
        )
    return judge(case, sample, reference, result, capabilities(backend)), seen["notes"]


CAUGHT = [
    ("element", torch.relu, (X,), "values"),
    ("element", lambda x: x.int(), (X,), "values"),
    ("element", lambda x: x > 0, (X,), "values"),
    ("element", lambda x: (x + 0).to(torch.float16), (X,), "values"),
    ("element", lambda x: torch.complex(x, x), (X,), "values"),
    ("element", lambda x: int(x.numel()), (X,), "values"),
    ("nan", torch.log, (X,), "special values"),
    ("inf", torch.log, (X,), "special values"),
    ("zero-sign", torch.relu, (X,), "special values"),
    ("dtype", torch.relu, (X,), "dtype"),
    ("dtype", lambda x: x > 0, (X,), "dtype"),
    ("strides", torch.relu, (X,), "strides"),
    ("strides", lambda x: x.t().relu(), (X,), "strides"),
    ("strides", torch.relu, (X[0],), "strides"),
    ("shape", torch.relu, (X,), "shape"),
    ("shape", torch.sum, (X,), "shape"),
    ("last-row", torch.exp, (X,), "values"),
    ("swapped-outputs", lambda x: (x.sin(), x.cos()), (X,), "values"),
    ("lost-mutation", increment, (X,), "mutation"),
    ("broken-alias", lambda x: x.t(), (X,), "aliasing"),
    ("broken-alias", lambda x: x.add_(1), (X,), "aliasing"),
    ("broken-alias", lambda x: x[0].expand(5, 3), (X,), "aliasing"),
    ("element", lambda x: x.shape, (X,), "values"),
    ("extra-mutation", torch.relu, (X,), "mutation"),
]


@pytest.mark.parametrize(("damage", "fn", "args", "check"), CAUGHT)
def test_every_damage_is_caught_for_what_it_is(damage: str, fn: Any, args: Any, check: str) -> None:
    verdict, notes = run(damage, fn, *args)
    assert notes["mutation"] == damage
    assert check in [str(finding.check) for finding in verdict.findings], verdict.findings


def test_a_wrong_gradient_is_caught_and_nothing_else_is_wrong() -> None:
    verdict, notes = run("gradient", torch.sin, X, direction="bwd")
    assert notes["mutation"] == "gradient"
    assert {finding.where for finding in verdict.findings} == {"args[0].grad"}


def test_a_stale_replay_is_caught() -> None:
    verdict, notes = run("stale-replay", torch.sin, X, replays=(((Y,), {}),))
    assert notes == {"mutation": "stale-replay", "detail": "call 1 returned the result of call 0"}
    assert all(finding.where.startswith("replay") for finding in verdict.findings)
    assert not verdict.ok


def test_a_stale_replay_of_another_structure_is_caught() -> None:
    verdict, notes = run("stale-replay", lambda x: x.unbind(0), X, replays=(((Y.t().contiguous(),), {}),))
    assert notes["mutation"] == "stale-replay"
    assert "structure" in [str(finding.check) for finding in verdict.findings]


def test_an_expanded_gradient_is_damaged_too() -> None:
    verdict, notes = run("gradient", torch.sum, X, direction="bwd")
    assert notes["mutation"] == "gradient"
    assert {finding.where for finding in verdict.findings} == {"args[0].grad"}


def test_values_are_damaged_without_touching_gradients() -> None:
    verdict, _ = run("element", torch.sin, X, direction="bwd")
    assert {finding.where for finding in verdict.findings} == {"output"}


@pytest.mark.parametrize("damage", NAMES)
def test_where_there_is_nothing_to_damage_the_result_is_right_and_it_is_said(damage: str) -> None:
    verdict, notes = run(damage, lambda x: None, X)
    if damage == "extra-mutation":
        assert notes["mutation"] == damage
    else:
        assert notes["mutation"] == "none"
        assert DAMAGES[damage].needs in notes["detail"]
        assert verdict.findings == () or [str(f.check) for f in verdict.findings] == ["nothing compared"]


def test_an_occasion_that_never_comes_is_said() -> None:
    verdict, notes = run("gradient", torch.sin, X.clone().requires_grad_())
    assert notes["mutation"] == "none"
    assert "occasion did not come" in notes["detail"]
    assert verdict.ok
    verdict, notes = run("stale-replay", torch.sin, X, replays=(((X,), {}),))
    assert notes["mutation"] == "none"
    assert "occasion did not come" in notes["detail"]
    assert verdict.ok


def test_names_and_table_are_the_same() -> None:
    assert tuple(DAMAGES) == NAMES


def test_the_choice_depends_on_the_sample_and_the_seed_alone() -> None:
    def order(sample: str, seed: int = 0) -> list[str]:
        backend = MutantBackend({"seed": seed})
        backend.begin(sample)
        return backend.order

    assert order("a#0") == order("a#0")
    assert len({tuple(order(f"a#{i}")) for i in range(20)}) == 20
    assert order("a#0") != order("a#0", seed=1)
    assert {order(f"a#{i}")[0] for i in range(200)} == set(NAMES)


def test_a_damage_that_does_not_apply_is_followed_by_one_that_does() -> None:
    backend = MutantBackend()
    for i in range(40):
        backend.begin(f"a#{i}")
        with backend.observe() as seen:
            backend.compile(torch.relu, dynamic=False)(X.clone())
        assert seen["notes"]["mutation"] in (
            "element",
            "zero-sign",
            "dtype",
            "strides",
            "shape",
            "last-row",
            "extra-mutation",
        )
