"""Pooling, and when two rankings agree."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.weights import encoding
from models.weights.encoding import Ranking


def ranking(first_row, tie=1e-3):
    """Of the first of several sentences; the others see no difference."""
    size = len(first_row)
    similarities = torch.zeros(size, size, dtype=torch.float64)
    similarities[0] = torch.tensor(first_row, dtype=torch.float64)
    return Ranking(similarities, tie)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ([1.0, 0.9, 0.5, 0.1], [1.0, 0.9, 0.5, 0.1], True),
        ([1.0, 0.9, 0.5, 0.1], [1.0, 0.8, 0.6, 0.2], True),  # other numbers, the same order
        ([1.0, 0.9, 0.5, 0.1], [1.0, 0.5, 0.9, 0.1], False),
        ([1.0, 0.5, 0.5001, 0.1], [1.0, 0.5001, 0.5, 0.1], True),  # a tie in both
        ([1.0, 0.5, 0.5001, 0.1], [1.0, 0.7, 0.5, 0.1], True),  # a tie in one
        ([1.0, 0.5, 0.5001, 0.5002], [1.0, 0.5002, 0.5001, 0.1], True),
        ([1.0, 0.5, 0.502, 0.1], [1.0, 0.502, 0.5, 0.1], False),  # no tie
        ([1.0, 0.9, 0.5, 0.1], [0.0, 0.9, 0.5, 0.1], True),  # how near a sentence is to itself ranks nothing
        ([1.0, 0.9, 0.5, 0.1], [1.0, float("nan"), 0.5, 0.1], False),
        ([1.0, 0.9, 0.5, 0.1], [1.0, 0.9, 0.5], False),
    ],
)
def test_rankings_agree_but_for_ties(left, right, equal):
    one, other = ranking(left), ranking(right)
    assert (one == other) is equal
    assert (other == one) is equal


@settings(deadline=None)
@given(st.integers(2, 6), st.integers(0, 2**20), st.floats(0.1, 10))
def test_a_ranking_agrees_with_itself_scaled_and_not_with_its_reverse(size, seed, scale):
    similarities = torch.rand(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    assert Ranking(similarities, 0.0) == Ranking(similarities * scale, 0.0)
    reversed_ = Ranking(-similarities, 0.0)
    assert (Ranking(similarities, 0.0) == reversed_) is (size == 2)  # the one other sentence is always the nearest


def test_a_ranking_is_no_other_thing():
    assert ranking([1.0, 0.5]) != [[1], [0]]


def test_orders_name_the_others_nearest_first():
    similarities = torch.tensor([[1.0, 0.2, 0.7], [0.2, 1.0, 0.3], [0.7, 0.3, 1.0]])
    assert Ranking(similarities, 0.0).orders() == [[2, 1], [2, 0], [0, 1]]


def test_padding_does_not_count_in_the_mean():
    hidden = torch.tensor([[[3.0, 4.0], [3.0, 4.0], [99.0, -99.0]]])
    made = encoding.pooled(hidden, torch.tensor([[1, 1, 0]]))
    torch.testing.assert_close(made, torch.tensor([[0.6, 0.8]]))


def test_figures_of_embeddings():
    def side(embeddings):
        return {"embeddings": embeddings, "ranking": Ranking(embeddings @ embeddings.T, 1e-3)}

    same = side(torch.eye(3, dtype=torch.float64))
    got = side(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.6, 0.8]], dtype=torch.float64))
    made = encoding.measure(got, same, None)
    assert made["cosine_min"] == pytest.approx(0.8)
    assert made["similarity_difference_max"] == pytest.approx(0.6)
    assert made["cosine_distance_max"] == pytest.approx(0.2)
    exactly = set(encoding.measure(got, same, same)) - set(made)
    assert exactly == {"exact_cosine_distance_max", "cpu_exact_cosine_distance_max"}
