"""The same code with another choice among equal numbers."""

import pytest
import torch
from torch import nn

from conformance.tiebreaks import NEAR, Alike, Rule, Site, TieBreaking, decisive

X = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0], [5.0, 4.0, 3.0, 2.0, 1.0]])
DISTINCT = torch.tensor([2.0, 0.0, 1.0])


def indices(fn, rule):
    with TieBreaking(rule) as mode:
        found = fn(X)[1]
    return found[0].tolist(), mode.sites


@pytest.mark.parametrize(
    ("fn", "op", "lowest", "highest"),
    [
        (lambda x: x.topk(2), "aten::topk", [1, 2], [4, 2]),
        (lambda x: x.topk(2, largest=False), "aten::topk", [3, 0], [3, 0]),
        (lambda x: (-x).topk(3, dim=-1, largest=False, sorted=False), "aten::topk", [1, 2, 4], [4, 2, 1]),
        (lambda x: x.sort(), "aten::sort", [3, 0, 1, 2, 4], [3, 0, 4, 2, 1]),
        (lambda x: (None, x.argsort(dim=1, descending=True)), "aten::sort", [1, 2, 4, 0, 3], [4, 2, 1, 0, 3]),
        (lambda x: x.kthvalue(3, keepdim=True), "aten::kthvalue", [1], [4]),
        (lambda x: x.kthvalue(3, 1, True), "aten::kthvalue", [1], [4]),
        (lambda x: x.t().median(0), "aten::median", 1, 4),
        (lambda x: x.mode(), "aten::mode", 1, 4),
    ],
)
def test_equal_numbers_are_taken_by_the_rule(fn, op, lowest, highest):
    """Whether or not the rows have a choice, one of them has; what has none keeps its answer."""
    for rule, expected in ((Rule.LOWEST, lowest), (Rule.HIGHEST, highest)):
        found, sites = indices(fn, rule)
        assert found == expected
        if lowest != highest:
            assert sites == [Site(op, "")]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.argmax(-1),
        lambda x: x.max(-1).indices,
        lambda x: x.sort(stable=True, descending=True).indices,
        lambda x: x[1].topk(3).indices,
        lambda x: x[0, 0].sort().indices,
        lambda x: x.new_full((3,), torch.nan).median(0).indices,
    ],
)
def test_what_has_no_choice_is_left_alone(fn):
    with TieBreaking(Rule.HIGHEST) as mode:
        found = fn(X)
    assert mode.sites == []
    assert torch.equal(found, fn(X))


def test_a_tie_below_the_ones_that_are_taken_is_no_choice():
    with TieBreaking(Rule.HIGHEST) as mode:
        assert torch.tensor([1.0, 1.0, 3.0, 2.0]).topk(2).indices.tolist() == [2, 3]
    assert mode.sites == []


def test_gradients_go_where_the_choice_went():
    x = X[0].clone().requires_grad_(True)
    with TieBreaking(Rule.HIGHEST):
        (gradient,) = torch.autograd.grad(x.topk(1).values.sum(), x)
    assert gradient.tolist() == [0, 0, 0, 0, 1]


class Ranked(nn.Module):
    """A choice without consequences, and then one that matters."""

    def __init__(self):
        super().__init__()
        self.harmless = nn.ModuleList([Chosen(positions=False), Chosen(positions=False)])
        self.harmful = Chosen(positions=True)

    def forward(self, x):
        for part in self.harmless:
            x = part(x) + 1
        return self.harmful(x)


class Chosen(nn.Module):
    def __init__(self, positions):
        super().__init__()
        self.positions = positions

    def forward(self, x):
        values, at = x.topk(2)
        return at.to(x) if self.positions else x - values.sum(-1, keepdim=True)


def test_the_first_choice_that_matters_is_found_with_its_module():
    module = Ranked()
    plain = module(X)

    def differs(mode):
        with mode:
            return not torch.equal(module(X), plain)

    rule = Rule.HIGHEST if plain[0].tolist() == [1, 2] else Rule.LOWEST
    assert decisive(differs, rule) == Site("aten::topk", "harmful")
    assert str(decisive(differs, rule)) == "aten::topk in harmful"


def test_without_a_choice_nothing_is_decisive():
    def differs(mode):
        with mode:
            return not torch.equal(DISTINCT.topk(2).indices, torch.tensor([0, 2]))

    assert decisive(differs, Rule.HIGHEST) is None


def test_an_error_in_a_module_leaves_no_trace():
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError(x)

    with pytest.raises(ValueError, match="1"), TieBreaking(Rule.LOWEST):
        Fails()(X)
    module = Chosen(positions=True)
    with TieBreaking(Rule.HIGHEST) as mode:
        module(X)
    assert mode.sites == [Site("aten::topk", "")]


def runs_alike(fn, first, second, rule=Rule.HIGHEST):
    around = Alike(rule)
    with around():
        taken = fn(first)[1]
    with around():
        return taken.tolist(), fn(second)[1].tolist()


@pytest.mark.parametrize("fn", [lambda x: x.topk(2), lambda x: x.sort(dim=0, descending=True)])
def test_a_second_run_takes_what_the_first_took_of_nearly_equal_numbers(fn):
    """As in float64, where two ways to compute the same number differ in other digits."""
    first, apart = torch.tensor([1.0, 3.0, 3.0, 0.0]), torch.tensor([1.0, 3.0 + NEAR, 3.0, 0.0], dtype=torch.float64)
    assert fn(apart)[1][0] == 1
    taken, again = runs_alike(fn, first, apart)
    assert taken == again
    assert taken[0] == 2


def test_a_second_run_takes_no_number_that_is_another():
    taken, again = runs_alike(lambda x: x.topk(2), torch.tensor([1.0, 3.0, 3.0]), torch.tensor([1.0, 3.0, 2.9]))
    assert (taken, again) == ([2, 1], [1, 2])


def test_runs_may_differ_in_their_shapes_and_in_what_they_call():
    taken, again = runs_alike(lambda x: (x.sort(), x.topk(1).indices), X[0], X[1])
    assert (taken, again) == ([4], [0])
    around = Alike(Rule.LOWEST)
    with around():
        X[0].topk(3)
    with around():
        assert X[0].topk(3).indices.tolist() == [1, 2, 4]
        assert X[0].topk(3).indices.tolist() == [1, 2, 4]  # more calls than before
