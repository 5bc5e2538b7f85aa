"""Random numbers: other draws of one distribution pass however they hang together, other distributions do not."""

import pytest
import torch

from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.judgement.distribution import compare_random, limit_of_draws
from conformance.reference import make_reference

F = torch.nn.functional
ONES = torch.ones(7, 7, 7, 7)

TOGETHER = {
    # name: (drop, its input, how many elements one draw decides)
    "dropout": (F.dropout, ONES, 1),
    "dropout1d": (F.dropout1d, torch.ones(20, 30, 10), 10),
    "dropout2d": (F.dropout2d, ONES, 49),
    "dropout3d": (F.dropout3d, ONES[None], 343),
    "feature_alpha_dropout": (lambda x, p: F.feature_alpha_dropout(x, p, training=True), ONES, 49),
    "one draw for all": (lambda x, p: x * torch.rand(1).round(), ONES, ONES.numel()),
}


def reference_of(fn, x):
    case = Case("test", "f", "float32", ShapeMode.STATIC, Direction.BACKWARD)
    return make_reference(case, Sample(0, fn, (x,), {}, NumericalClass.PROPERTY, "", ""))


def gradient(fn, x, cotangent, seed):
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    return torch.autograd.grad(fn(x), x, cotangent)[0]


def complaint(name, p, seed):
    """About the gradient of the op with another probability of dropping and seed."""
    drop, x, _ = TOGETHER[name]
    reference = reference_of(lambda x: drop(x, 0.5), x)
    got = gradient(lambda x: drop(x, p), x, reference.same.cotangents[0], seed)
    expected = reference.same.gradients[0].value
    return compare_random(expected, got, None, lambda: limit_of_draws(reference, "args[0].grad"))


@pytest.mark.parametrize("name", TOGETHER)
def test_another_draw_passes(name):
    assert [said for seed in range(100, 120) if (said := complaint(name, 0.5, seed))] == []


@pytest.mark.parametrize("name", ["dropout", "dropout1d"])
def test_another_probability_does_not(name):
    assert "another distribution" in (complaint(name, 0.0, 3) or "")
    assert "another distribution" in (complaint(name, 0.98, 3) or "")


def test_the_more_elements_a_draw_decides_the_farther_draws_are_apart():
    apart = [
        limit_of_draws(reference_of(lambda x, drop=TOGETHER[name][0]: drop(x, 0.5), TOGETHER[name][1]), "args[0].grad")
        for name in ("dropout", "dropout2d", "dropout3d", "one draw for all")
    ]
    assert apart == sorted(apart)
    assert apart[0] < 0.1
    assert apart[1] > 0.2


@pytest.mark.parametrize("fn", [torch.rand_like, torch.bernoulli, torch.randn_like])
@pytest.mark.parametrize("n", [20, 400, 3000])
def test_independent_numbers_are_about_as_strictly_compared_as_by_the_critical_distance(fn, n):
    case = Case("test", "f", "float32", ShapeMode.STATIC, Direction.FORWARD)
    x = torch.full((n,), 0.5)
    reference = make_reference(case, Sample(0, fn, (x,), {}, NumericalClass.PROPERTY, "", ""))
    assert limit_of_draws(reference, "output") < 2 * 4.1 / n**0.5


def test_what_is_not_random_has_none():
    assert limit_of_draws(reference_of(torch.sin, torch.rand(50)), "args[0].grad") == 0.0
    assert limit_of_draws(reference_of(torch.sin, torch.rand(50)), "args[9].grad") == 0.0


def test_the_cpu_is_asked_only_if_there_is_a_complaint():
    x = torch.rand(1000)
    assert compare_random(x, x.flip(0), None, lambda: pytest.fail("asked")) is None
    assert compare_random(x, x + 1, None, lambda: 0.0)
