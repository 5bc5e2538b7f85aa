"""The text of a repro script: at most 40 lines of Python for every kind of failure, or why there are none."""

from __future__ import annotations

import ast

import pytest

from conformance import calls, repro
from conformance.judgement.findings import Check
from conformance.outcomes import Outcome
from conformance.repro import CannotRepro, Failure, Setting, compose


def setting(**fields: object) -> Setting:
    return Setting(
        **{
            "sample": "op:sort:int64:static:fwd:samples#0",
            "backend": "spyre",
            "imports": "import torch\nimport spyre_backend",
            "compiled": 'torch.compile(fn, backend="inductor", dynamic=False)',
            "device": "spyre",
            "fn": "torch.sort",
            "statements": ["t0 = torch.tensor([3, 1], dtype=torch.int64, device=device)"],
            "calls": ["((t0,), {})"],
            **fields,
        }
    )


def wrong(check: Check = Check.VALUES, where: str = "output", **fields: object) -> Failure:
    return Failure(outcome=Outcome.WRONG, check=check, where=where, message="m\nn", fingerprint="f", **fields)


SHOWN = [check for check in Check if check not in repro.NOT_SHOWN]
FAILURES = [
    *(wrong(check) for check in SHOWN),
    wrong(Check.MUTATION, "args[0] after the call", error_class="out of bounds"),
    wrong(Check.SPECIAL, error_class="sign of zero"),
    wrong(Check.VALUES, "args[0].grad", atol=0.5),
    Failure(outcome=Outcome.ERROR, message="E: x", stage="lower"),
    Failure(outcome=Outcome.UNSUPPORTED, eager_raises="IndexError"),
    Failure(outcome=Outcome.ERROR, on_device=True),
    Failure(outcome=Outcome.CRASH),
    Failure(outcome=Outcome.TIMEOUT),
    Failure(outcome=Outcome.OOM),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda f: f"{f.outcome} {f.check or ''} {f.error_class}".strip())
@pytest.mark.parametrize("backward", [False, True])
def test_every_failure_has_a_script(failure: Failure, backward: bool) -> None:
    packed = 't1 = unpack("eJw=", torch.float32, device)'
    text = compose(setting(backward=backward, statements=[*setting().statements, packed]), failure)
    tree = ast.parse(text)
    assert len(text.splitlines()) <= repro.LINES
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= {"torch", "spyre_backend", "sys", "base64", "zlib", "subprocess", "resource"}
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert defined <= used, "defines something that it does not use"
    for name in ("flat", "same", "unpack", "base64", "zlib", "subprocess", "resource"):
        assert (name in used) == (name in defined | imported), name


@pytest.mark.parametrize("check", list(repro.NOT_SHOWN))
def test_what_no_script_can_show(check: Check) -> None:
    with pytest.raises(CannotRepro, match="cannot be shown by a script of its own: "):
        compose(setting(), wrong(check))


def test_every_check_is_shown_or_has_a_reason() -> None:
    assert {*repro.DIFFERS, *repro.NOT_SHOWN, Check.EXCEPTION} == set(Check)
    assert set(repro.PICKED) | repro.NUMBERS <= set(repro.DIFFERS)


@pytest.mark.parametrize("outcome", [Outcome.PASS, Outcome.SKIPPED, Outcome.INFRA, Outcome.BUDGET])
def test_no_failure_no_script(outcome: Outcome) -> None:
    with pytest.raises(CannotRepro):
        compose(setting(), Failure(outcome=outcome))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("output", (0, "output")),
        ("output[0].values", (0, "output[0].values")),
        ("kwargs['bias'].grad", (0, "kwargs['bias'].grad")),
        ("args[1] after the call", (0, "args[1]")),
        ("replay[1] output[2]", (2, "output[2]")),
        ("replay[0] args[0] after the call", (1, "args[0]")),
    ],
)
def test_places(where: str, expected: tuple[int, str]) -> None:
    assert repro.place_of(where) == expected
    ast.parse(expected[1], mode="eval")


def test_only_the_calls_up_to_the_wrong_one_are_made() -> None:
    three = setting(calls=[f"((t0, {n}), {{}})" for n in range(3)])
    first = compose(three, wrong())
    assert "(t0, 0)" in first
    assert "(t0, 1)" not in first
    second = compose(three, wrong(where="replay[0] output"))
    assert "(t0, 1)" in second
    assert "(t0, 2)" not in second
    assert "return found[1]" in second
    assert "(t0, 2)" in compose(three, wrong(), all_calls=True)
    assert "(t0, 2)" in compose(three, Failure(outcome=Outcome.ERROR))


def test_a_script_that_would_be_too_long_is_refused() -> None:
    many = setting(statements=[f"t{n} = torch.ones({n})" for n in range(50)])
    with pytest.raises(CannotRepro, match="at most 40 are allowed"):
        compose(many, wrong())


def test_the_seed_is_that_of_the_engine() -> None:
    assert repro.SEED == calls.SEED
