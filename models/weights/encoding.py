"""What a sentence encoder is for: embeddings, and which sentences are nearest to which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from models import measures

TIE = 1e-4
"""Two similarities nearer than this, or than `TIE_ULPS` units in the last place of the embeddings' format at 1 (what a
cosine is known to), are a tie, in which either sentence may come first."""
TIE_ULPS = 4


class Ranking:
    """Which sentence is how near to which, by cosine (rows, rows), with ties. One value, not a container.

    Two are equal if no row orders two other sentences one way here and the other way there, unless they are a tie in
    one of the two.
    """

    def __init__(self, similarities: Tensor, tie: float) -> None:
        self.similarities, self.tie = similarities, tie

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranking) or self.similarities.shape != other.similarities.shape:
            return False
        ours, theirs = _leads(self.similarities), _leads(other.similarities)
        sure = (ours.abs() >= self.tie) & (theirs.abs() >= other.tie)
        known = bool(self.similarities.isfinite().all() and other.similarities.isfinite().all())
        return known and not bool((sure & (ours.sign() != theirs.sign())).any())

    def __hash__(self) -> int:
        return 0  # equality is no equivalence: nothing tells two of them apart for sure

    def __repr__(self) -> str:
        return f"Ranking(nearest first: {self.orders()})"

    def orders(self) -> list[list[int]]:
        """For each sentence the others, the most similar first."""
        ordered: list[list[int]] = self.similarities.argsort(dim=-1, descending=True, stable=True).tolist()
        return [[j for j in row if j != i] for i, row in enumerate(ordered)]


def _leads(similarities: Tensor) -> Tensor:
    """By how much sentence j leads sentence k in the view of i, (i, j, k); 0 where one of them is i itself."""
    leads = similarities[:, :, None] - similarities[:, None, :]
    own = torch.eye(len(similarities), dtype=torch.bool)
    return leads.masked_fill(own[:, :, None] | own[:, None, :], 0.0)


def pooled(hidden: Tensor, attention_mask: Tensor) -> Tensor:
    """Embeddings (rows, width) of unit length out of states (rows, tokens, width): the mean over the tokens that the
    mask (rows, tokens) names, as sentence-transformers takes it (its Pooling and Normalize)."""
    weights = attention_mask.unsqueeze(-1).expand(hidden.size()).to(hidden.dtype)
    mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return functional.normalize(mean, p=2, dim=1)


def embed(model: Callable[..., Any], *, attention_mask: Tensor, **inputs: Any) -> dict[str, Any]:
    """Embeddings (rows, width) of tokenised sentences, and their `Ranking`. Only `model` is compiled."""
    with torch.no_grad():
        output = model(attention_mask=attention_mask, **inputs)
        embeddings = pooled(output["last_hidden_state"], attention_mask)
    on_host = embeddings.cpu().double()
    tie = max(TIE, TIE_ULPS * torch.finfo(embeddings.dtype).eps)
    return {"embeddings": embeddings, "ranking": Ranking(on_host @ on_host.T, tie)}


def measure(got: Any, same: Any, exact: Any) -> Mapping[str, float]:
    """Figures of what `embed` returned: the smallest cosine of an embedding with the CPU's in the same dtype, how far
    from 1 it is, and from that with the float64 one; and the largest difference of a similarity from the CPU's."""
    smallest = _smallest_cosine(got, same)
    made = {
        "cosine_min": smallest,
        "cosine_distance_max": 1.0 - smallest,
        "similarity_difference_max": (got["ranking"].similarities - same["ranking"].similarities).abs().max().item(),
        "nearest_agreement": _nearest_agreement(got["ranking"], same["ranking"]),
    }
    if exact is not None:
        made["exact_cosine_distance_max"] = 1.0 - _smallest_cosine(got, exact)
        made["cpu_exact_cosine_distance_max"] = 1.0 - _smallest_cosine(same, exact)
    return made


def _smallest_cosine(got: Any, expected: Any) -> float:
    return measures.cosines(got["embeddings"], expected["embeddings"]).min().item()


def _nearest_agreement(got: Ranking, same: Ranking) -> float:
    """The share of sentences that have the same neighbours in the same order, ties or not."""
    pairs = list(zip(got.orders(), same.orders(), strict=True))
    return sum(ours == theirs for ours, theirs in pairs) / len(pairs)
