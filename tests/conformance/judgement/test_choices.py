"""A model that keeps the k largest of equal numbers: any consistent choice is right, and nothing else is."""

import dataclasses

import msgspec
import pytest
import torch
from torch import nn

from conformance import divergence, execute
from conformance.backends.eager import EagerBackend
from conformance.backends.protocol import Capabilities
from conformance.calls import run_sample
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.judgement import choices
from conformance.judgement.choices import judge, judge_with
from conformance.outcomes import Outcome
from conformance.reference import make_reference
from conformance.tiebreaks import Alike, Rule, TieBreaking

CASE = Case("model", "sparse", "float32", ShapeMode.STATIC, Direction.FORWARD)
NOTE = "depends on which of equal numbers aten::topk in indexer takes"


class Indexer(nn.Module):
    """Ranks by scores of which a ReLU makes several 0."""

    def forward(self, x):
        return torch.relu(x - 0.5).topk(6).indices


class Sparse(nn.Module):
    def __init__(self, indexer=None):
        super().__init__()
        torch.manual_seed(0)
        self.indexer = indexer or Indexer()
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        kept = torch.zeros_like(x).scatter(-1, self.indexer(x), 1.0)
        return self.head(x * kept)


def of(length, seed=0):
    return torch.rand(length, 12, generator=torch.Generator().manual_seed(seed))


def sample_of(module=None, replays=(), **fields):
    kind = NumericalClass.COMPOSITE
    replays = tuple(((x,), {}) for x in replays)
    return Sample(0, module or Sparse(), (of(3),), {}, kind, "", "Sparse()", replays=replays, **fields)


def by(rule):
    """A backend's compiler that breaks ties by `rule` in each call; a list of rules has one for each call."""
    rules = iter(rule) if isinstance(rule, list) else None

    def compile(fn):
        def run(*args):
            with TieBreaking(next(rules) if rules else rule):
                return fn(*args)

        return run

    return compile


def damaged(compile, by=1e-3):
    """The same with one element off."""

    def made(fn):
        def run(*args):
            out = compile(fn)(*args)
            out[1, 2] += by
            return out

        return run

    return made


def verdict(sample, compile, dtype="float32"):
    case = msgspec.structs.replace(CASE, dtype=dtype)
    reference = make_reference(case, sample)
    result = run_sample(compile(sample.fn), sample, direction="fwd")
    return judge(case, sample, reference, result, Capabilities(device="cpu"))


@pytest.mark.parametrize("rule", Rule)
def test_ties_may_be_broken_by_any_rule(rule):
    found = verdict(sample_of(), by(rule))
    assert found.ok
    notes = [note for note in found.notes if note.startswith("depends")]
    assert notes in ([], [f"{NOTE}: right with the {rule}"])


def test_another_rule_than_that_of_the_cpu_is_said():
    """Of two rules, one at least is not the CPU's."""
    noted = [any(note.startswith(NOTE) for note in verdict(sample_of(), by(rule)).notes) for rule in Rule]
    assert any(noted)


@pytest.mark.parametrize("compile", [damaged(by(Rule.LOWEST)), damaged(by(Rule.HIGHEST)), damaged(lambda fn: fn)])
def test_a_wrong_element_is_wrong_by_every_rule(compile):
    found = verdict(sample_of(), compile)
    assert not found.ok
    assert found.notes[0].startswith(f"{NOTE}: wrong with the choice of the CPU")


def test_what_no_choice_changes_is_not_laid_to_one():
    def compile(fn):
        def run(x):
            out = by(Rule.HIGHEST)(fn)(x)
            x += 1
            return out

        return run

    found = verdict(sample_of(), compile)
    assert [finding.where for finding in found.findings] == ["args[0] after the call"]
    assert not [note for note in found.notes if note.startswith("depends")]


def test_a_choice_of_what_is_not_equal_is_wrong():
    class SecondBest(Indexer):
        def forward(self, x):
            return torch.relu(x - 0.5).topk(7).indices[:, 1:]

    assert not verdict(sample_of(), lambda fn: Sparse(SecondBest())).ok


def test_what_does_not_depend_on_ties_is_judged_as_before(monkeypatch):
    """However many of them there are: here all scores are kept."""

    class All(Indexer):
        def forward(self, x):
            return torch.relu(x - 0.5).topk(12).indices

    sample = sample_of(Sparse(All()))
    found = verdict(sample, damaged(lambda fn: fn))
    assert not found.ok
    assert not [note for note in found.notes if "equal numbers" in note]
    monkeypatch.setattr(choices, "_others", lambda *_: pytest.fail("looked for ties in a right result"))
    assert verdict(sample, lambda fn: fn).ok


def test_calls_may_differ_in_their_rule():
    replays = [of(5, seed=1), of(7, seed=2)]
    rules = [Rule.HIGHEST, Rule.LOWEST, Rule.HIGHEST]
    assert verdict(sample_of(replays=replays), by(rules)).ok


@pytest.mark.parametrize("rule", Rule)
def test_calls_may_differ_in_how_much_the_choice_matters(rule):
    """What is slightly off is as wrong as what is far off, and found no sooner."""
    sample = sample_of(replays=[of(5, seed=1) / 100])
    assert verdict(sample, by(rule)).ok
    mixed = [verdict(sample, by([rule, other])).ok for other in Rule]
    assert all(mixed)


def test_of_several_calls_the_one_that_is_wrong_by_every_rule_is_named():
    def compile(fn):
        lowest, highest = by(Rule.LOWEST)(fn), by(Rule.HIGHEST)(fn)

        def run(x):
            return highest(x) if len(x) == 3 else lowest(x) + (len(x) == 7)

        return run

    found = verdict(sample_of(replays=[of(5, seed=1), of(7, seed=2)]), compile)
    assert not found.ok
    assert {finding.where.split()[0] for finding in found.findings} == {"replay[1]"}


@pytest.mark.parametrize("rule", Rule)
def test_gradients_follow_the_choice(rule):
    def train(fn, x):
        x = x.clone().requires_grad_(True)
        return torch.autograd.grad(fn(x).square().sum(), x)[0]

    sample = sample_of(drive=train)
    case = msgspec.structs.replace(CASE, direction=Direction.BACKWARD)
    reference = make_reference(case, sample)
    result = run_sample(by(rule)(sample.fn), sample, direction="fwd")
    assert judge(case, sample, reference, result, Capabilities(device="cpu")).ok
    result = run_sample(damaged(by(rule))(sample.fn), sample, direction="fwd")
    assert not judge(case, sample, reference, result, Capabilities(device="cpu")).ok


def test_the_reference_that_agrees_is_given():
    sample = sample_of()
    reference = make_reference(CASE, sample)
    for rule in Rule:
        result = run_sample(by(rule)(sample.fn), sample, direction="fwd")
        found, chosen = judge_with(CASE, sample, reference, result, Capabilities(device="cpu"))
        assert found.ok
        assert torch.equal(chosen.same.outputs[0].value, result.outputs[0].value)


def test_ops_of_other_classes_have_checks_of_their_own():
    sample = dataclasses.replace(sample_of(Indexer()), numerics=NumericalClass.EXACT)
    found = [verdict(sample, by(rule)).ok for rule in Rule]
    assert not all(found)


def test_what_is_equal_but_for_rounding_is_chosen_alike_in_float64():
    """The same number computed in two ways: equal in float32, and not in float64."""

    class Twice(Indexer):
        def forward(self, x):
            thirds = x / 3 + x / 3 + x / 3
            both = torch.cat([thirds[:, :6], x[:, :6]], -1)
            return both.topk(5).indices

    sample = sample_of(Sparse(Twice()))
    reference = make_reference(CASE, sample)
    for rule in Rule:
        chosen = reference.within(rule, lambda rule=rule: Alike(rule))
        difference = chosen.same.outputs[0].value - chosen.exact.outputs[0].value
        assert float(difference.abs().max()) < 1e-5
        assert verdict(sample, by(rule)).ok
    result = run_sample(sample.fn, sample, direction="fwd")
    found, settled = judge_with(CASE, sample, reference, result, Capabilities(device="cpu"))
    assert found.ok
    assert torch.allclose(settled.same.outputs[0].value.double(), settled.exact.outputs[0].value, atol=1e-5)


class Breaks(EagerBackend):
    """Breaks ties by a rule, and may compute linear layers wrongly."""

    control = False

    def __init__(self, rule, factor=1.0):
        self.rule, self.factor = rule, factor

    def compile(self, fn, *, dynamic, fullgraph=False):
        from torch.utils._python_dispatch import TorchDispatchMode

        factor = self.factor

        class Scaled(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                return out * factor if func.name() == "aten::addmm" else out

        compiled = by(self.rule)(fn)

        def run(*args, **kwargs):
            with Scaled():
                return compiled(*args, **kwargs)

        return run


@pytest.mark.parametrize("rule", Rule)
def test_a_record_passes_and_is_measured_beside_the_same_choice(rule):
    sample = sample_of(measure=lambda got, same, exact: {"off": (got - same).abs().max()})
    record = execute.run_sample(Breaks(rule), CASE, sample, suite="models")
    assert record.outcome is Outcome.PASS
    assert record.measurements["off"] == 0


@pytest.mark.parametrize("rule", Rule)
def test_the_culprit_is_what_is_broken_and_not_the_choice(rule):
    record = execute.run_sample(Breaks(rule, factor=1.01), CASE, sample_of(), suite="models")
    assert record.outcome is Outcome.WRONG
    assert (record.culprit_module, record.culprit_op) == ("head Linear", "aten::addmm")
    assert NOTE in record.reason


def test_a_part_that_only_chooses_has_no_culprit():
    assert all(divergence.locate(Breaks(rule), CASE, sample_of()) is None for rule in Rule)
