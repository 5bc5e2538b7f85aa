"""How far the answers of a language model or an encoder are off, in figures that people compare models by.

Pure functions of logits (..., vocabulary) or embeddings (rows, width), computed in float64. They judge nothing: what is
right follows from the numbers themselves (`conformance.judgement`). Which figures: those by which accelerators are
compared with the CPU in practice, token-by-token cross-entropy and mean probability difference with tokens given
(`aiu-fms-testing-utils` of the foundation-model-stack), and agreement of the k most likely tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

TOP = 5  # tokens that sampling looks at first


def cross_entropy(got: Tensor, expected: Tensor) -> Tensor:
    """Of each token, in nats: that of what `got` predicts against the distribution that `expected` predicts.

    Logits of one shape (..., vocabulary); the result has the shape (...). Raises ValueError for two shapes.
    """
    _same_shape(got, expected)
    probabilities = expected.double().softmax(-1)
    return -_expectation(probabilities, got.double().log_softmax(-1))


def excess_entropy(got: Tensor, expected: Tensor) -> Tensor:
    """The cross-entropy of each token less the least possible, that of `expected` with itself: at least 0 (their
    Kullback-Leibler divergence), and 0 where the distributions are one. In nats; raises as `cross_entropy` does."""
    return (cross_entropy(got, expected) - cross_entropy(expected, expected)).clamp_min(0.0)


def probability_difference(got: Tensor, expected: Tensor) -> Tensor:
    """The mean over the vocabulary of how far each probability is off, by token. Raises as `cross_entropy` does."""
    _same_shape(got, expected)
    return (got.double().softmax(-1) - expected.double().softmax(-1)).abs().mean(-1)


def top_agreement(got: Tensor, expected: Tensor, k: int) -> Tensor:
    """The share of the `k` most likely tokens of `expected` that are among those of `got`, by token.

    Equally likely ones are one and the same here: a token counts whose logit in `got` is at least the k-th. Raises as
    `cross_entropy` does, and ValueError where the vocabulary has fewer than `k` tokens.
    """
    _same_shape(got, expected)
    if not 1 <= k <= got.shape[-1]:
        raise ValueError(f"k is between 1 and the vocabulary's {got.shape[-1]}, not {k}")
    wide, chosen = got.double(), expected.double().topk(k, -1).indices
    least = wide.topk(k, -1).values[..., -1:]
    return (wide.gather(-1, chosen) >= least).double().mean(-1)


def cosines(got: Tensor, expected: Tensor) -> Tensor:
    """Cosine of each row of `got` (rows, width) with the same row of `expected`. Raises ValueError for two shapes."""
    _same_shape(got, expected)
    return torch.nn.functional.cosine_similarity(got.double(), expected.double(), dim=-1)


def of_logits(got: Tensor, same: Tensor, exact: Tensor | None) -> dict[str, float]:
    """Figures of teacher-forced logits (..., vocabulary) against the most exact there are, float64 or `same`.

    With the same two of the CPU in the case's dtype, named cpu_*, where there are exact ones: they say what the format
    alone costs.
    """
    best = same if exact is None else exact
    made = {
        "top1_agreement": top_agreement(got, best, 1).mean().item(),
        f"top{TOP}_agreement": top_agreement(got, best, min(TOP, got.shape[-1])).mean().item(),
        "cross_entropy": cross_entropy(got, best).mean().item(),
        "excess_entropy_max": excess_entropy(got, best).max().item(),
        "probability_difference": probability_difference(got, best).mean().item(),
    }
    if exact is not None:
        made["cpu_excess_entropy_max"] = excess_entropy(same, exact).max().item()
        made["cpu_probability_difference"] = probability_difference(same, exact).mean().item()
    return made


def of_forward(got: Any, same: Any, exact: Any) -> Mapping[str, float]:
    """Of the results of `drives.forward`, where a language model returned logits (batch, length, vocabulary)."""
    if not isinstance(same, dict) or "logits" not in same:
        return {}
    return of_logits(got["logits"], same["logits"], None if exact is None else exact["logits"])


def of_decoding(got: Any, same: Any, exact: Any) -> Mapping[str, float]:
    """Of the results of `drives.decode`: the logits of prefill and steps, one after the other, and the share of the
    tokens of its own that are the CPU's."""
    sides = [None if side is None else torch.cat([side["prefill"], side["steps"]], -2) for side in (got, same, exact)]
    ours, theirs = (torch.tensor(side["greedy"].tokens) for side in (got, same))
    made = of_logits(*sides)  # type: ignore[arg-type]  # only the last may be None
    return {**made, "greedy_agreement": (ours == theirs).double().mean().item()}


def _expectation(probabilities: Tensor, values: Tensor) -> Tensor:
    """Over the last dimension; what is impossible adds nothing, however unlikely `values` says that it is."""
    return torch.where(probabilities > 0, probabilities * values, 0.0).sum(-1)


def _same_shape(got: Tensor, expected: Tensor) -> None:
    if got.shape != expected.shape:
        raise ValueError(f"two shapes: {tuple(got.shape)} and {tuple(expected.shape)}")
