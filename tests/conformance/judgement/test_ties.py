"""Equal inputs: another choice among them is right where the op chooses, and nothing else is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.backends.protocol import Capabilities
from conformance.calls import run_sample
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.judgement.judge import judge
from conformance.reference import make_reference

F = torch.nn.functional
PLAIN = torch.tensor([[3.0, 1.0, 2.0, 1.0, 0.5, 3.0], [1.0, 1.0, 1.0, 7.0, 0.0, 0.0]])
LAST_FIRST = torch.arange(5, -1, -1)


def backwards(fn):
    """`fn` of the columns in reverse order: it meets equal elements the other way round."""
    return lambda x: fn(x[:, LAST_FIRST])


def verdict(fn, got_fn, x, dtype="float32"):
    x = x.to(getattr(torch, dtype))
    case = Case("test", "f", dtype, ShapeMode.STATIC, Direction.BACKWARD)
    sample = Sample(0, fn, (x,), {}, NumericalClass.COMPOSITE, "", "")
    reference = make_reference(case, sample)
    result = run_sample(got_fn, sample, direction="bwd", cotangents=reference.cotangents)
    return judge(case, sample, reference, result, Capabilities(device="cpu"))


def sorted_the_other_way(x):
    """Sorts with equal elements in reverse order, as an unstable sort may."""
    return x.gather(1, LAST_FIRST[x[:, LAST_FIRST].argsort(dim=1, stable=True)])


CHOOSES = {
    # name: (op, the same with another choice)
    "msort": (lambda x: torch.msort(x.t()).t(), sorted_the_other_way),
    "sort": (lambda x: x.sort(1).values, sorted_the_other_way),
    "topk": (lambda x: x.topk(2, 1).values, backwards(lambda x: x.topk(2, 1, sorted=True).values)),
    "kthvalue": (lambda x: x.kthvalue(3, 1).values, lambda x: sorted_the_other_way(x)[:, 2].clone()),
    "median": (lambda x: x.median(1).values, lambda x: sorted_the_other_way(x)[:, 2].clone()),
    "largest": (lambda x: x.max(1).values, backwards(lambda x: x.max(1).values)),
    "smallest": (lambda x: x.min(1).values, backwards(lambda x: x.min(1).values)),
    "pool": (
        lambda x: F.max_pool1d(x[None], 3)[0],
        lambda x: backwards(lambda y: F.max_pool1d(y[None], 3)[0])(x).flip(1),
    ),
    "overlapping pool": (
        lambda x: F.max_pool1d(x[None], 3, stride=1)[0],
        lambda x: backwards(lambda y: F.max_pool1d(y[None], 3, stride=1)[0])(x).flip(1),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CHOOSES)
def test_another_choice_passes_and_damage_does_not(name, dtype):
    fn, other = CHOOSES[name]
    judged = verdict(fn, other, PLAIN, dtype)
    assert judged.ok, judged.findings
    scaled = verdict(fn, lambda x: other(x) + 0.05 * (x - x.detach())[:, : other(x).shape[-1]].reshape(-1)[0], PLAIN)
    assert not scaled.ok
    lost = verdict(fn, lambda x: other(x) * 0 + other(x).detach(), PLAIN)
    assert not lost.ok
    shared_out = lambda x: (other(x) + fn(x)) * 0.5  # noqa: E731
    assert not verdict(fn, shared_out, PLAIN).ok


def test_without_ties_there_is_no_choice():
    x = torch.tensor([[3.0, 1.0, 2.0, 1.5, 0.5, 3.5]])

    def swapped(x):
        values = x.sort(1).values
        exchanged = values[:, [1, 0, 2, 3, 4, 5]]
        return exchanged + (values - exchanged).detach()

    assert not verdict(lambda x: x.sort(1).values, swapped, x).ok


def test_only_equal_elements_may_be_exchanged():
    x = PLAIN[:1]
    order = x.argsort(dim=1, stable=True)
    order[0, [0, 1]] = order[0, [1, 0]]  # 0.5 and 1.0, which are not equal
    wrong = lambda x: x.gather(1, order) - (x.gather(1, order) - x.sort(1).values).detach()  # noqa: E731
    assert not verdict(lambda x: x.sort(1).values, wrong, x).ok


ONE_ANSWER = {
    # name: (op, its gradient at equal elements done otherwise): PyTorch documents what is right
    "amax shares out": (lambda x: x.amax(1), lambda x: x.max(1).values),
    "amin shares out": (lambda x: x.amin(1), lambda x: x.min(1).values),
    "at the limit of a clamp": (
        lambda x: x.clamp(min=1.0),
        lambda x: torch.where(x > 1.0, x, x.detach().clamp(min=1.0)),
    ),
    "relu at zero": (torch.relu, lambda x: torch.where(x >= 0, x, x.detach() * 0)),
    "maximum shares out": (
        lambda x: torch.maximum(x, x.detach().roll(1, 1)),
        lambda x: torch.where(x > x.detach().roll(1, 1), x, x.detach().roll(1, 1)),
    ),
}


@pytest.mark.parametrize("name", ONE_ANSWER)
def test_where_there_is_one_right_answer_ties_are_no_excuse(name):
    fn, other = ONE_ANSWER[name]
    assert verdict(fn, fn, PLAIN).ok
    assert not verdict(fn, other, PLAIN).ok


def test_indices_that_came_with_the_gradient():
    def other(x):
        indices = LAST_FIRST[x[:, LAST_FIRST].argsort(dim=1, stable=True)]
        return x.gather(1, indices), indices

    fn = lambda x: tuple(x.sort(1))  # noqa: E731
    assert verdict(fn, other, PLAIN).ok
    assert not verdict(fn, lambda x: (other(x)[0], other(x)[1].flip(1)), PLAIN).ok
    assert not verdict(fn, lambda x: (other(x)[0], other(x)[1] * 0), PLAIN).ok


@settings(max_examples=20, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-2, 2), min_size=6, max_size=6), min_size=1, max_size=4),
    name=st.sampled_from([*CHOOSES]),
)
def test_any_ties(rows, name):
    fn, other = CHOOSES[name]
    x = torch.tensor(rows, dtype=torch.float32)
    judged = verdict(fn, other, x)
    assert judged.ok, judged.findings
