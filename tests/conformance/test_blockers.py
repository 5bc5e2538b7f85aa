"""What blocks a model, from records by hand: its own failure, what the host ran, and its calls checked alone."""

from __future__ import annotations

from typing import Any

import pytest

from conformance import signatures, traced
from conformance.blockers import Evidence, Goal, canonical, diagnose, named_ops
from conformance.cases import Case, Direction, ShapeMode
from conformance.outcomes import Outcome, Stage, Support
from conformance.records import Record
from conformance.signatures import Signature
from conformance.traced import Traced

FWD, BWD = Direction.FORWARD, Direction.BACKWARD


def model(name: str, outcome: Outcome = Outcome.PASS, direction: Direction = FWD, **fields: Any) -> Record:
    case = Case("model", name, "float32", ShapeMode.STATIC, direction)
    return Record.of(case, 0, suite="models", backend="b", outcome=outcome, **fields)


def call(op: str, *users: str, dtype: str = "float32") -> Traced:
    text = signatures.encode(Signature(op, dtype, [{"tensor": [dtype, [2]]}], {}, {}))
    number = signatures.number(text)
    return Traced(op=op, dtype=dtype, number=number, signature=text, users=users)


def alone(traced: Traced, outcome: Outcome = Outcome.PASS, **fields: Any) -> Record:
    case = Case("op", traced.op, traced.dtype, ShapeMode.STATIC, FWD, "traced")
    return Record.of(case, traced.number, suite="ops", backend="b", outcome=outcome, **fields)


def blocking(records: list[Record], calls: list[Traced] = (), goal: Goal = Goal.RUNS) -> dict[str, set[str]]:
    return {name: set(found) for name, found in diagnose(records, calls, goal).blockers.items()}


SORT = call("aten.sort.stable", "model:m:fwd")
CUMSUM = call("aten.cumsum.default", "model:m:fwd", "model:m:bwd")
ONLY_BACK = call("aten.tanh_backward.default", "model:m:bwd")


def test_a_right_model_has_reached_the_goal_whatever_its_calls_do():
    found = diagnose([model("m"), alone(SORT, Outcome.UNSUPPORTED)], [SORT], Goal.RUNS)
    assert (found.unlocked, found.evidence) == ({"m"}, {})


@pytest.mark.parametrize(("goal", "expected"), [(Goal.RUNS, {}), (Goal.DEVICE, {"m": {"aten::sort.stable"}})])
def test_a_fallback_blocks_only_what_is_to_run_on_the_device(goal, expected):
    assert blocking([model("m", fallbacks={"aten::sort.stable": 2, "aten::mul": 0})], goal=goal) == expected


def test_the_op_that_the_failure_names_blocks_and_those_of_its_calls_too():
    records = [
        model("m", Outcome.UNSUPPORTED, message="LoweringError: no lowering for aten.sort.stable"),
        alone(CUMSUM, Outcome.ERROR),
        alone(SORT),
    ]
    found = diagnose(records, [SORT, CUMSUM], Goal.RUNS)
    assert found.dtypes == {"aten::cumsum": {"float32"}}
    assert found.evidence == {"m": {"aten::sort.stable": {Evidence.NAMED}, "aten::cumsum": {Evidence.CALL}}}


def test_a_call_that_another_model_gets_right_does_not_block():
    shared = call("aten.sort.stable", "model:m:fwd", "model:other:fwd")
    failing = [model("m", Outcome.ERROR, fingerprint="E:boom@run:m"), alone(shared, Outcome.ERROR)]
    assert blocking(failing, [shared])["m"] == {"aten::sort.stable", "cause: E:boom"}
    assert blocking([*failing, model("other")], [shared]) == {"m": {"cause: E:boom"}}
    assert "aten::sort.stable" in blocking([*failing, model("other", direction=BWD)], [shared])["m"]


def test_calls_of_another_direction_do_not_block():
    records = [model("m"), model("m", Outcome.ERROR, BWD, message="boom"), alone(SORT, Outcome.ERROR)]
    assert blocking([*records, alone(ONLY_BACK, Outcome.ERROR)], [SORT, ONLY_BACK]) == {
        "m": {"aten::tanh_backward", "cause: error"}
    }


def test_what_no_op_explains_is_a_cause():
    record = model("m", Outcome.CRASH, fingerprint="crash:SIGSEGV@run:m")
    assert blocking([record]) == {"m": {"cause: crash:SIGSEGV"}}
    same = alone(SORT, Outcome.CRASH, fingerprint="crash:SIGSEGV@run:aten.sort.stable")
    assert blocking([record, same], [SORT]) == {"m": {"aten::sort.stable"}}
    refused = model("m", Outcome.UNSUPPORTED, fingerprint="E:no kernel@run:m")
    call_refused = alone(SORT, Outcome.UNSUPPORTED, fingerprint="E:no dtype@lower:aten.sort.stable")
    assert blocking([refused, call_refused], [SORT]) == {"m": {"aten::sort.stable", "cause: E:no kernel"}}
    other = alone(SORT, Outcome.WRONG, fingerprint="wrong:values@compare:aten.sort.stable")
    assert blocking([record, other], [SORT]) == {"m": {"aten::sort.stable", "cause: crash:SIGSEGV"}}


def test_the_first_op_that_fails_alone_blocks_where_none_is_named():
    wrong = model("m", Outcome.WRONG, message="values differ", culprit_op="aten::convolution")
    assert blocking([wrong]) == {"m": {"aten::convolution"}}
    refused = model("m", Outcome.UNSUPPORTED, message="no aten::histc", culprit_op="aten::empty")
    assert blocking([refused]) == {"m": {"aten::histc"}}


def test_calls_alone_tell_of_models_that_were_not_run():
    records = [alone(SORT, Outcome.UNSUPPORTED), alone(CUMSUM, support=Support.FALLBACK)]
    assert blocking(records, [SORT, CUMSUM]) == {"m": {"aten::sort.stable"}}
    assert blocking(records, [SORT, CUMSUM], Goal.DEVICE) == {"m": {"aten::sort.stable", "aten::cumsum"}}
    assert diagnose([], [SORT], Goal.RUNS).unknown == {"m"}
    assert diagnose([model("other")], [SORT], Goal.RUNS).unknown == set()


def test_the_op_that_fell_back_is_the_one_to_fix():
    hosted = alone(CUMSUM, fallbacks={"aten::cumsum.out": 1, "aten::clone": 1})
    assert blocking([hosted], [CUMSUM], Goal.DEVICE) == {"m": {"aten::cumsum", "aten::clone"}}


def test_what_the_op_sweep_left_to_the_host_alone_blocks_its_users():
    case = Case("op", "cumsum", "float32", ShapeMode.STATIC, FWD)
    hosted = Record.of(
        case, 0, suite="ops", backend="b", outcome=Outcome.PASS, fallbacks={"aten::cumsum": 1, "aten::sort.stable": 1}
    )
    native = Record.of(case, 1, suite="ops", backend="b", outcome=Outcome.PASS, lowered={"aten::sort.stable": 1})
    assert blocking([hosted, native], [SORT, CUMSUM], Goal.DEVICE) == {"m": {"aten::cumsum"}}


@pytest.mark.parametrize("outcome", [Outcome.SKIPPED, Outcome.INFRA])
def test_what_was_not_run_is_unknown(outcome):
    assert diagnose([model("m", outcome)], [], Goal.RUNS).unknown == {"m"}


@pytest.mark.parametrize(("stage", "blocked"), [(Stage.REFERENCE, False), (Stage.COMPARE, False), (Stage.RUN, True)])
def test_our_own_want_of_time_blocks_no_model(stage, blocked):
    found = diagnose([model("m", Outcome.TIMEOUT, stage=stage, fingerprint="timeout:f@x:m")], [], Goal.RUNS)
    assert bool(found.evidence) is blocked
    assert found.unknown == (set() if blocked else {"m"})


def test_too_many_breaks_are_still_right():
    assert diagnose([model("m", Outcome.BUDGET)], [], Goal.RUNS).unlocked == {"m"}


@pytest.mark.parametrize(
    ("text", "known", "expected"),
    [
        ("no lowering for aten::sort.stable", (), ["aten::sort.stable"]),
        ("failed to legalize operation 'torch.aten.unique2' that was marked illegal", (), ["aten::unique2"]),
        ("aten.add.Tensor and aten.relu.default and aten::add.Tensor", (), ["aten::add.Tensor", "aten::relu"]),
        ("prims.convert_element_type.default", (), ["prims::convert_element_type"]),
        ("cannot lower tril.default in model.layers", ("aten::tril",), ["aten::tril"]),
        ("cannot lower tril.default in model.layers", (), []),
        ("Unsupported function types ['embedding', 'setitem']", ("aten::embedding",), ["aten::embedding", "setitem"]),
        ("a list of sizes [1, 2] and no op", ("aten::mm",), []),
    ],
)
def test_names_in_messages(text, known, expected):
    assert named_ops(text, known) == expected


def test_an_operator_alone_means_the_overload_that_the_model_uses():
    record = model("m", Outcome.UNSUPPORTED, message="no kernel for aten::sort")
    assert blocking([record], [SORT]) == {"m": {"aten::sort.stable"}}
    values = call("aten.sort.values", "model:m:fwd")
    assert blocking([record], [SORT, values]) == {"m": {"aten::sort"}}


def test_users_and_names():
    assert traced.user(model("x/y", direction=BWD)) == "model:x/y:bwd"
    assert canonical("aten.add.Tensor") == canonical("aten::add.Tensor") == "aten::add.Tensor"
    assert canonical("aten.relu.default") == "aten::relu"
