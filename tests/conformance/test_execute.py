"""One sample, one record: every way in which a compiled callable can end."""

from __future__ import annotations

import pytest
import torch

from conformance import execute
from conformance.backends.eager import EagerBackend
from conformance.budgets import Budgets
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.judgement.findings import Check
from conformance.outcomes import Outcome, Owner, Stage, Support, is_undecided
from conformance.report import support

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Compiler(EagerBackend):
    """Eager, with what a compiler may do wrong put in its place."""

    control = True  # the ladder has tests of its own

    def __init__(self, compiled=None):
        super().__init__()
        self.compiled = compiled

    def compile(self, fn, *, dynamic, fullgraph=False):
        return self.compiled or fn

    def reset(self):
        torch.compiler.reset()


def case_of(direction=Direction.FORWARD):
    return Case("op", "probe", "float32", ShapeMode.STATIC, direction)


def sample_of(fn, *args, **fields):
    return Sample(0, fn, args, {}, NumericalClass.ELEMENTWISE, "digest", "probe", **fields)


def run(fn, compiled=None, *args, direction=Direction.FORWARD, budgets=None):
    extra = {} if budgets is None else {"budgets": budgets}
    sample = sample_of(fn, *(args or (X,)), **extra)
    return execute.run_sample(Compiler(compiled), case_of(direction), sample, suite="ops", seed=3)


@pytest.mark.parametrize(("compiled", "outcome"), [(None, Outcome.PASS), (lambda x: x.exp() + 1, Outcome.WRONG)])
def test_a_sample_measures_its_results_right_or_wrong(compiled, outcome):
    def measure(got, same, exact):
        return {"off": (got - same).max(), "exactly": (got.double() - exact).abs().max()}

    record = execute.run_sample(Compiler(compiled), case_of(), sample_of(torch.exp, X, measure=measure), suite="ops")
    assert record.outcome is outcome
    assert record.measurements["off"] == (0.0 if compiled is None else pytest.approx(1.0))
    assert record.measurements["exactly"] == pytest.approx(record.measurements["off"], abs=1e-6)


HILBERT = 1 / (torch.arange(8.0).view(-1, 1) + torch.arange(8.0) + 1)  # its condition is 2e10


@pytest.mark.parametrize(
    ("compiled", "undecided"),
    [
        (lambda x: torch.linalg.inv(x * (1 + 1e-7 * torch.linspace(-1, 1, 64).reshape(8, 8))), True),
        (lambda x: torch.linalg.inv(x).to(torch.bfloat16).float() + 1e12, False),
    ],
)
def test_what_no_bound_can_tell_is_laid_to_nobody(compiled, undecided):
    sample = Sample(0, torch.linalg.inv, (HILBERT,), {}, NumericalClass.COMPOSITE, "digest", "probe")
    backend = Compiler(compiled)
    backend.control = False
    record = execute.run_sample(backend, case_of(), sample, suite="ops")
    assert (record.outcome, is_undecided(record)) == (Outcome.WRONG, undecided), record.message
    assert record.support is (None if undecided else Support.WRONG)
    assert bool(record.rungs) is not undecided
    if undecided:
        assert record.owner is Owner.UNDETERMINED
        assert support.of_sample(record) is None


def test_a_finding_that_tells_decides_beside_one_that_does_not():
    def both(x):
        return torch.linalg.inv(x), x + 1

    def compiled(x):
        return torch.linalg.inv(x * (1 + 1e-7 * torch.linspace(-1, 1, 64).reshape(8, 8))), x + 2

    sample = Sample(0, both, (HILBERT,), {}, NumericalClass.COMPOSITE, "digest", "probe")
    record = execute.run_sample(Compiler(compiled), case_of(), sample, suite="ops")
    assert record.message.startswith(Check.LOOSE)
    assert record.fingerprint.startswith("wrong:values")
    assert not is_undecided(record)


def test_a_measure_that_fails_is_said_and_judges_nothing():
    def measure(got, same, exact):
        raise KeyError("logits")

    record = execute.run_sample(Compiler(), case_of(), sample_of(torch.exp, X, measure=measure), suite="ops")
    assert (record.outcome, record.measurements) == (Outcome.PASS, {})
    assert "not measured: KeyError" in record.reason


def raises(error):
    def call(*args):
        raise error

    return call


def lazily_wrong(x):
    return x.exp() + 1e-2


@pytest.mark.parametrize(
    ("compiled", "outcome", "stage", "fingerprint"),
    [
        (None, Outcome.PASS, None, ""),
        (lazily_wrong, Outcome.WRONG, Stage.COMPARE, "wrong:values"),
        (lambda x: x.exp().double(), Outcome.WRONG, Stage.COMPARE, "wrong:"),
        (lambda x: x.exp().t(), Outcome.WRONG, Stage.COMPARE, "wrong:"),
        (lambda x: x.exp_(), Outcome.WRONG, Stage.COMPARE, "wrong:"),
        (raises(NotImplementedError("no exp here")), Outcome.UNSUPPORTED, Stage.RUN, "NotImplementedError:no exp here"),
        (raises(ValueError("broken")), Outcome.ERROR, Stage.RUN, "ValueError:broken"),
        (raises(MemoryError()), Outcome.OOM, Stage.RUN, "MemoryError"),
        (raises(RuntimeError("DefaultCPUAllocator: can't allocate memory")), Outcome.OOM, Stage.RUN, "RuntimeError"),
    ],
)
def test_how_a_call_ends(compiled, outcome, stage, fingerprint):
    record = run(torch.exp, compiled)
    assert (record.outcome, record.stage) == (outcome, stage)
    assert record.fingerprint.startswith(fingerprint)
    assert bool(record.message) == (outcome is not Outcome.PASS)
    assert record.sample == "op:probe:float32:static:fwd:samples#0"
    assert record.seed == 3
    assert record.cpu_s is not None
    assert record.backend_cpu_s is not None


def test_a_failure_keeps_the_end_of_its_traceback():
    record = run(torch.exp, raises(ValueError("broken")))
    assert record.traceback.splitlines()[-1] == "ValueError: broken"
    assert len(record.traceback.splitlines()) <= execute.TRACEBACK_LINES


@pytest.mark.parametrize(
    ("compiled", "outcome"),
    [
        (None, Outcome.PASS),  # raises likewise
        (raises(IndexError("other text, same class")), Outcome.PASS),
        (raises(KeyError("x")), Outcome.ERROR),
        (lambda x: x, Outcome.WRONG),
    ],
)
def test_where_eager_raises_the_backend_must_raise_the_same(compiled, outcome):
    record = run(lambda x: x[5], compiled)
    assert record.outcome is outcome
    assert (record.compared == 1) == (outcome is Outcome.PASS)


@pytest.mark.parametrize(
    ("fn", "direction", "reason"),
    [
        (lambda x: x.detach(), Direction.BACKWARD, "nothing to differentiate"),
        (lambda x: (), Direction.FORWARD, "nothing to compare"),
    ],
)
def test_what_leaves_nothing_to_compare_is_skipped_with_a_reason(fn, direction, reason):
    record = run(fn, direction=direction)
    assert record.outcome is Outcome.SKIPPED
    assert record.reason.startswith(reason)


def test_a_call_that_only_writes_to_its_input_is_judged():
    def write(x):
        x.add_(1)
        return ()

    assert run(write).outcome is Outcome.PASS
    assert run(write, lambda x: ()).outcome is Outcome.WRONG


def test_the_gradient_is_judged():
    class WrongGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.exp()

        @staticmethod
        def backward(ctx, grad):
            return grad

    assert run(torch.exp, direction=Direction.BACKWARD).outcome is Outcome.PASS
    record = run(torch.exp, WrongGradient.apply, direction=Direction.BACKWARD)
    assert record.outcome is Outcome.WRONG
    assert ".grad" in record.message


def breaking(x):
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


@pytest.mark.parametrize(("allowed", "outcome"), [(None, Outcome.PASS), (1, Outcome.PASS), (0, Outcome.BUDGET)])
def test_graph_breaks_have_a_budget(allowed, outcome):
    compiled = torch.compile(breaking, backend="eager")
    record = run(breaking, compiled, budgets=Budgets(graph_breaks=allowed))
    assert record.outcome is outcome
    assert sum(item.count for item in record.breaks) == 1
    assert record.graphs == 2


def by_rows(x):
    return x * 2 if x.shape[0] < 4 else x * 3


@pytest.mark.parametrize(
    ("only_captures", "allowed", "again", "left"), [(True, 0, 1, 3), (True, None, 2, 0), (False, 0, 2, 0)]
)
def test_what_only_captures_stops_once_it_is_over_its_budget(only_captures, allowed, again, left):
    """The second size needs a graph of its own; the third has one; the fourth and fifth are of other ranks."""
    backend = Compiler(torch.compile(by_rows, backend="eager", dynamic=True))
    backend.only_captures = only_captures
    replays = tuple(((torch.ones(*shape),), {}) for shape in ((5, 3), (6, 3), (2, 4, 2), (3, 4, 2)))
    sample = sample_of(by_rows, torch.ones(3, 3), replays=replays, budgets=Budgets(recompiles=allowed))
    record = execute.run_sample(backend, case_of(), sample, suite="models")
    assert record.outcome is (Outcome.PASS if allowed is None else Outcome.BUDGET)
    assert sum(item.count for item in record.recompiles) == again
    assert (f"the last {left} of 5 calls not run" in record.reason) == bool(left)
    assert record.compared == 5 - left


def test_stages_are_told_in_order_before_they_begin():
    told = []
    execute.run_sample(Compiler(), case_of(), sample_of(torch.exp, X), suite="ops", on_stage=told.append)
    assert told == [Stage.REFERENCE, Stage.CAPTURE, Stage.RUN, Stage.COMPARE]


def test_a_long_message_keeps_its_cause():
    def fails(*args):
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            raise RuntimeError("a graph " * 1000) from cause

    message = run(torch.exp, fails).message
    assert message.startswith("RuntimeError: a graph")
    assert message.endswith("...\nKeyError: 'the cause'")
    assert len(message) == execute.MESSAGE_LIMIT


def test_what_follows_a_failure_of_the_backend_is_not_told_as_our_own_work():
    told = []
    backend = Compiler(lazily_wrong)
    backend.control = False
    execute.run_sample(backend, case_of(), sample_of(torch.exp, X), suite="ops", on_stage=told.append)
    assert told == [Stage.REFERENCE, Stage.CAPTURE, Stage.RUN, Stage.COMPARE, Stage.RUN]


def test_what_is_wrong_has_the_support_wrong():
    assert run(torch.exp, lazily_wrong).support is Support.WRONG
    assert run(torch.exp, raises(NotImplementedError("no"))).support is Support.UNSUPPORTED
