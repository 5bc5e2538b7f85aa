"""Figures of language models and encoders, against small cases worked out by hand and properties that always hold."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import measures
from models.drives import Greedy

INF = math.inf


def logits_of(probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log()


@st.composite
def two_logits(draw):
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(2, 9)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    scale = draw(st.sampled_from([0.1, 1.0, 30.0]))
    return tuple(scale * torch.randn(shape, generator=generator) for _ in range(2))


@pytest.mark.parametrize(
    ("got", "expected", "nats"),
    [
        ([0.5, 0.5], [0.5, 0.5], math.log(2)),
        ([0.5, 0.5], [1.0, 0.0], math.log(2)),
        ([0.25, 0.75], [0.5, 0.5], 0.5 * math.log(4) + 0.5 * math.log(4 / 3)),
        ([1.0, 0.0], [1.0, 0.0], 0.0),  # what is impossible on both sides adds nothing
        ([0.0, 1.0], [1.0, 0.0], INF),
    ],
)
def test_cross_entropy(got, expected, nats):
    assert measures.cross_entropy(logits_of(got), logits_of(expected)).item() == pytest.approx(nats)


@pytest.mark.parametrize(
    ("got", "expected", "difference"),
    [([0.5, 0.5], [0.5, 0.5], 0.0), ([1.0, 0.0], [0.0, 1.0], 1.0), ([0.6, 0.2, 0.2], [0.3, 0.5, 0.2], 0.2)],
)
def test_probability_difference_is_the_mean_over_the_vocabulary(got, expected, difference):
    made = measures.probability_difference(logits_of(got), logits_of(expected)).item()
    assert made == pytest.approx(difference, abs=1e-12)


@pytest.mark.parametrize(
    ("got", "expected", "k", "share"),
    [
        ([3.0, 2.0, 1.0], [3.0, 2.0, 1.0], 1, 1.0),
        ([2.0, 3.0, 1.0], [3.0, 2.0, 1.0], 1, 0.0),
        ([2.0, 3.0, 1.0], [3.0, 2.0, 1.0], 2, 1.0),  # the order among them does not count
        ([1.0, 3.0, 2.0], [3.0, 2.0, 1.0], 2, 0.5),
        ([3.0, 3.0, 1.0], [3.0, 2.0, 1.0], 1, 1.0),  # the first of two that are equal: either will do
        ([3.0, 3.0, 1.0], [2.0, 3.0, 1.0], 1, 1.0),
        ([1.0, 3.0, 2.0], [3.0, 2.0, 1.0], 3, 1.0),
    ],
)
def test_top_agreement(got, expected, k, share):
    assert measures.top_agreement(torch.tensor(got), torch.tensor(expected), k).item() == share


@pytest.mark.parametrize("k", [0, 4])
def test_more_tokens_than_there_are_is_an_error(k):
    with pytest.raises(ValueError, match="between 1 and the vocabulary's 3"):
        measures.top_agreement(torch.zeros(3), torch.zeros(3), k)


@pytest.mark.parametrize(
    "figure", [measures.cross_entropy, measures.excess_entropy, measures.probability_difference, measures.cosines]
)
def test_two_shapes_are_an_error_and_not_broadcast(figure):
    with pytest.raises(ValueError, match=r"two shapes: \(1, 3\) and \(2, 3\)"):
        figure(torch.zeros(1, 3), torch.zeros(2, 3))


@settings(deadline=None)
@given(two_logits())
def test_nothing_is_off_of_itself(pair):
    logits, _ = pair
    made = measures.of_logits(logits, logits, None)
    assert made["top1_agreement"] == made["top5_agreement"] == 1.0
    assert made["excess_entropy_max"] == made["probability_difference"] == 0.0


@settings(deadline=None)
@given(two_logits())
def test_figures_stay_within_what_they_can_be(pair):
    got, expected = pair
    assert bool((measures.excess_entropy(got, expected) >= 0).all())
    vocabulary = got.shape[-1]
    assert bool((measures.probability_difference(got, expected) <= 2 / vocabulary + 1e-12).all())
    for k in (1, vocabulary):
        share = measures.top_agreement(got, expected, k)
        assert bool(((share >= 0) & (share <= 1)).all())
    assert bool((measures.top_agreement(got, expected, vocabulary) == 1).all())


@settings(deadline=None)
@given(two_logits(), st.floats(-50, 50))
def test_a_constant_added_to_logits_changes_nothing(pair, constant):
    got, expected = (logits.double() for logits in pair)
    for figure in (measures.cross_entropy, measures.probability_difference):
        torch.testing.assert_close(figure(got + constant, expected), figure(got, expected))


def test_cosines_are_by_row():
    made = measures.cosines(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 2.0], [3.0, 3.0]]))
    torch.testing.assert_close(made, torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_a_forward_is_measured_where_it_has_logits_against_the_exact_ones():
    exact = torch.randn(2, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    got, same = exact.half(), exact.float()
    made = measures.of_forward({"logits": got}, {"logits": same}, {"logits": exact})
    assert made["excess_entropy_max"] > made["cpu_excess_entropy_max"] >= 0
    assert made["probability_difference"] > made["cpu_probability_difference"] > 0
    without = measures.of_forward({"logits": got}, {"logits": same}, None)
    assert not any(name.startswith("cpu_") for name in without)
    assert measures.of_forward({"last_hidden_state": got}, {"last_hidden_state": same}, None) == {}


def test_decoding_is_measured_over_prefill_and_steps_and_by_the_tokens_chosen():
    def side(logits, tokens):
        return {"prefill": logits[:, :2], "steps": logits[:, 2:], "greedy": Greedy(tokens, [[1.0] * 4], 1e-3)}

    logits = torch.randn(1, 5, 11, generator=torch.Generator().manual_seed(0))
    other = logits.clone()
    other[:, 4] = -other[:, 4]  # the last step is all wrong
    made = measures.of_decoding(side(other, [[1, 2, 3, 4]]), side(logits, [[1, 2, 9, 9]]), side(logits, [[0] * 4]))
    assert made["top1_agreement"] == pytest.approx(0.8)
    assert made["greedy_agreement"] == 0.5
