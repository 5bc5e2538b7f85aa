"""Rows times the matrix of their group, as mixtures of experts do it.

Which rows a group has is known only when the graph runs, but the sizes of a program before: each row meets the matrices
of all groups, and what those of the others give is left out. PyTorch's way, one product for each group, would run on
the host, as would the fallback of transformers, which reads the sizes there.
"""

from typing import Any

import torch

from spyre_backend.inductor.rules import Rule, adds_to

Tensor = torch.Tensor

RULES: dict[Any, Rule] = {}
"""By overload, or by its name where another package registers it."""


def _members(ends: Tensor, rows: Any) -> Tensor:
    """`[groups, rows, 1]`: whether a row is one of a group; `ends[g]` is the row after the last of group `g`."""
    starts = torch.nn.functional.pad(ends[:-1], (1, 0))
    row = torch.arange(rows, device=ends.device)
    return ((row >= starts[:, None]) & (row < ends[:, None])).unsqueeze(-1)


def _is_of_rows(x: Tensor, matrices: Tensor, ends: Tensor | None = None, bias: Any = None, *_: Any, **__: Any) -> bool:
    return x.dim() == 2 and matrices.dim() == 3 and ends is not None and bias is None


@adds_to(RULES, torch.ops.aten._grouped_mm.default, "transformers.grouped_mm_fallback.default", when=_is_of_rows)
def _grouped_mm(
    x: Tensor, matrices: Tensor, ends: Tensor, bias: Any = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """`[rows, k]` times `[groups, k, n]`."""
    products = torch.bmm(x.expand(matrices.shape[0], -1, -1), matrices)
    found = torch.where(_members(ends, x.shape[0]), products, 0).sum(0)
    return found if out_dtype is None else found.to(out_dtype)


@adds_to(RULES, "transformers.grouped_mm_fallback_backward.default")
def _grouped_mm_backward(x: Tensor, matrices: Tensor, ends: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    own = torch.where(_members(ends, x.shape[0]), x, 0)
    to_matrices = torch.bmm(own.transpose(1, 2), grad.expand(matrices.shape[0], -1, -1))
    return _grouped_mm(grad, matrices.transpose(1, 2), ends), to_matrices
