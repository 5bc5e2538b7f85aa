"""What is called for a sample: functions as they are, modules as copies on the device."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from conformance import callables, execute
from conformance.backends.eager import EagerBackend
from conformance.budgets import Budgets
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.outcomes import Outcome


class Tied(torch.nn.Module):
    """An encoder and decoder that share their weight, a buffer, and a count of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            self.encoder.weight.copy_(torch.arange(16.0).reshape(4, 4) / 16)
        self.decoder.weight = self.encoder.weight
        self.register_buffer("offset", torch.tensor([0.5]))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.decoder(torch.relu(self.encoder(x))) + self.offset


def sample_of(fn, *args, **fields):
    return Sample(0, fn, args, {}, NumericalClass.COMPOSITE, "digest", "probe", **fields)


def case_of(mode=ShapeMode.STATIC, direction=Direction.FORWARD):
    return Case("model", "tied", "float32", mode, direction)


def test_a_function_is_what_it_is():
    sample = sample_of(torch.exp, torch.ones(2))
    assert callables.on_device(sample.fn, "meta") is torch.exp
    assert callables.driven(sample, torch.sin) is torch.sin


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_module_is_copied_with_what_it_shares(device):
    module = Tied()
    made = callables.on_device(module, device, lambda t: t.double())
    assert {t.device.type for t in (*made.parameters(), *made.buffers())} == {device}
    assert {t.dtype for t in (*made.parameters(), *made.buffers())} == {torch.float64}
    assert made.encoder.weight is made.decoder.weight
    assert isinstance(made.encoder.weight, torch.nn.Parameter)
    assert module.encoder.weight.dtype is torch.float32
    assert made.encoder.weight is not module.encoder.weight


def test_each_run_of_a_module_starts_from_the_same_state():
    module = Tied()
    record = execute.run_sample(EagerBackend(), case_of(), sample_of(module, torch.ones(2, 4)), suite="models")
    assert record.outcome is Outcome.PASS
    assert module.calls == 0


class Shared(torch.nn.Module):
    """A part that refuses to be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(3.0))

    def __deepcopy__(self, memo):
        return self

    def forward(self, x):
        return x * self.scale


class Remembered(Tied):
    """Each instance that was called is held for ever, as by a method behind `lru_cache`."""

    called: ClassVar[list[torch.nn.Module]] = []

    def __init__(self) -> None:
        super().__init__()
        self.shared = Shared()

    def forward(self, x):
        self.called.append(self)
        return self.shared(super().forward(x)), self.encoder.weight


def test_a_borrowed_copy_is_emptied_whoever_holds_it():
    module, x = Remembered(), torch.ones(2, 4)
    with callables.borrowed(module) as made:
        result, weight = made(x)
        held = [weight, made.encoder, made.get_buffer("offset")]
    assert held[0].numel() == held[2].numel() == 0
    assert not vars(made)
    assert not vars(held[1])
    torch.testing.assert_close(module(x)[0], result)  # neither the module nor what it shares with the copy is touched


def test_what_is_held_of_the_runs_of_a_judge_is_empty():
    module = Remembered()
    Remembered.called.clear()
    sample = sample_of(module, torch.ones(2, 4))
    assert execute.run_sample(OffInFirst(), case_of(), sample, suite="models").outcome is Outcome.WRONG
    assert len(Remembered.called) > 10
    holding = {id(held): held for held in Remembered.called if vars(held)}
    assert len(holding) == 1  # what the backend compiled
    assert vars(module)


class Off(EagerBackend):
    """Adds to what a module gives, as wrong code would."""

    def compile(self, fn, *, dynamic, fullgraph=False):
        return lambda *args, **kwargs: fn(*args, **kwargs) + self.by

    by = 1e-3


class OffInFirst(EagerBackend):
    """Adds to the first of several results."""

    def compile(self, fn, *, dynamic, fullgraph=False):
        def call(*args, **kwargs):
            first, *others = fn(*args, **kwargs)
            return first + 1e-3, *others

        return call


def test_a_wrong_module_is_wrong():
    sample = sample_of(Tied(), torch.ones(2, 4))
    assert execute.run_sample(Off(), case_of(), sample, suite="models").outcome is Outcome.WRONG


def three_steps(model, x):
    """Feeds a model its own output."""
    seen = []
    for _ in range(3):
        x = model(x)
        seen.append(x)
    return seen


def test_what_is_driven_is_judged_as_a_whole():
    sample = sample_of(Tied(), torch.ones(2, 4), drive=three_steps)
    record = execute.run_sample(EagerBackend(), case_of(), sample, suite="models")
    assert (record.outcome, record.compared) == (Outcome.PASS, 3)
    wrong = execute.run_sample(Off(), case_of(), sample, suite="models")
    assert wrong.outcome is Outcome.WRONG
    assert "output[0]" in wrong.message


def gradients(model, x):
    """The loss and the gradients of a model's parameters."""
    loss = model(x).square().mean()
    loss.backward()
    return {"loss": loss.detach(), **{name: p.grad for name, p in model.named_parameters()}}


def test_what_is_driven_differentiates_itself():
    sample = sample_of(Tied(), torch.ones(2, 4), drive=gradients)
    record = execute.run_sample(EagerBackend(), case_of(direction=Direction.BACKWARD), sample, suite="models")
    assert (record.outcome, record.message) == (Outcome.PASS, "")
    assert record.compared == 2  # the loss, and the gradient of the shared weight


def test_a_graph_break_is_an_error_in_a_sample_that_wants_one_graph():
    from conformance.backends.dynamo import DynamoBackend

    def breaking(x):
        torch._dynamo.graph_break()
        return x + 1

    whole = execute.run_sample(DynamoBackend(), case_of(), sample_of(breaking, torch.ones(2)), suite="models")
    assert whole.outcome is Outcome.PASS
    sample = sample_of(breaking, torch.ones(2), fullgraph=True)
    assert execute.run_sample(DynamoBackend(), case_of(), sample, suite="models").outcome is not Outcome.PASS


@pytest.mark.parametrize(
    ("budgets", "counts", "said"),
    [
        (Budgets(), {"graph_breaks": 9, "recompiles": 9, "fallbacks": 9}, ""),
        (Budgets(graph_breaks=0), {"graph_breaks": 0, "recompiles": 9, "fallbacks": 9}, ""),
        (
            Budgets(graph_breaks=0),
            {"graph_breaks": 1, "recompiles": 0, "fallbacks": 0},
            "1 graph breaks, at most 0 allowed",
        ),
        (
            Budgets(recompiles=1),
            {"graph_breaks": 1, "recompiles": 2, "fallbacks": 0},
            "2 recompiles, at most 1 allowed",
        ),
    ],
)
def test_budgets(budgets, counts, said):
    assert budgets.exceeded(counts) == said
