"""Other sizes for the same call: what a callable compiled for symbolic sizes is called with next.

OpInfo seldom has two samples that differ in sizes alone. Here the sizes of a sample are changed consistently (every
dimension of one size gets the same new size, so that shapes still fit each other) and the elements are repeated. That
is only a guess at a valid call: it counts if the CPU accepts it and its answer is as finite as that of the sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from op_coverage.inputs import Call, result, tensors
from op_coverage.upstream import pytree

Resize = Callable[[int, int, bool, bool], int]
"""(size, its dimension, whether it is the leading size of the first tensor, whether it is in that tensor) -> new."""


FIXED = frozenset(
    {
        # offsets, lengths or boundaries that must ascend, or must add up
        "_segment_reduce.lengths",
        "_segment_reduce.offsets",
        "bucketize",
        "histogram",
        "histogramdd",
        "nn.functional.ctc_loss",
        "nn.functional.embedding_bag",
        "searchsorted",
        # matrices whose rank is low by construction
        "pca_lowrank",
        "svd_lowrank",
        # a place that is written twice may keep either value
        "index_copy",
        "index_put",
        "nn.functional.max_unpool1d",
        "nn.functional.max_unpool1d.grad",
        "nn.functional.max_unpool2d",
        "nn.functional.max_unpool2d.grad",
        "nn.functional.max_unpool3d",
        "nn.functional.max_unpool3d.grad",
        "put",
        "scatter",
        # made for a rank, for lengths of reflectors, or for an order of eigenvalues that repeated inputs do not keep:
        # their gradients would be nothing but rounding error
        "linalg.eigvals",
        "linalg.householder_product",
        "linalg.pinv.singular",
    }
)
"""Subjects whose results are undefined or unjudgeable if their inputs are repeated, although the CPU accepts them."""


def _changes(step: int, factor: int) -> tuple[Resize, ...]:
    # Odd steps first, because sizes that no block divides find more; multiples keep what must divide. The others are a
    # larger batch: in all tensors, or where the others have none, in the first.
    return (
        lambda n, d, leads, first: n + step,
        lambda n, d, leads, first: n * factor,
        lambda n, d, leads, first: n + step * (d == 0 and leads),
        lambda n, d, leads, first: n + step * (d == 0 and first),
    )


_PLANS = (_changes(2, 2), _changes(5, 3))
"""For each replay, the changes to try in this order. Sizes 0 and 1 stay: compilers specialise on them."""

_MOST_ELEMENTS = 2**19
"""Of a tensor, in the call or in its results: OpInfo has samples that are large on purpose, and twice each size is 32
times that; a convolution with dilation makes millions of elements of a few hundred."""
_SEED = 0  # of the factors of repeated elements
_SMALLEST_FACTOR = 0.75  # near enough to 1 that a domain is not left, far enough that 16 bits tell repeats apart


def grown(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Call]:
    """Up to two calls like `fn(*args, **kwargs)` with larger sizes, each accepted by the CPU; may be empty."""
    shares = _finite_share(fn, (tuple(args), dict(kwargs)))
    if shares is None:
        return []
    found = []
    for plan in _PLANS:
        call = next((c for c in _attempts(plan, args, kwargs) if (_finite_share(fn, c) or -1.0) >= shares), None)
        if call is not None:
            found.append(call)
    return found


def _attempts(plan: Sequence[Resize], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Call]:
    for resize in plan:
        call = _resized(resize, args, kwargs)
        if call is not None:
            yield call


def _resized(resize: Resize, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call | None:
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    changed, lead = False, 0
    made: dict[int, torch.Tensor] = {}
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            continue
        if id(leaf) not in made:
            if leaf.layout is not torch.strided or leaf.is_nested or 0 in _strides_of_sizes_above_one(leaf):
                return None
            lead = lead or (leaf.shape[0] if leaf.dim() else 0)
            sizes = [resize(n, d, n == lead, not made) if n > 1 else n for d, n in enumerate(leaf.shape)]
            if sizes != list(leaf.shape) and math.prod(sizes) > _MOST_ELEMENTS:
                return None
            made[id(leaf)] = leaf if sizes == list(leaf.shape) else _repeat(leaf, sizes)
            changed |= sizes != list(leaf.shape)
        leaves[i] = made[id(leaf)]
    return pytree.tree_unflatten(leaves, spec) if changed else None


def _strides_of_sizes_above_one(t: torch.Tensor) -> list[int]:
    return [stride for stride, size in zip(t.stride(), t.shape, strict=True) if size > 1]


def _repeat(t: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """`t` continued to `sizes` by its own elements, in the same order of dimensions in memory; indices stay within what
    they index. Repeated floating elements are scaled down, each by a factor of its own: equal rows or equal elements
    would make matrices singular, and the gradients of whatever sorts or selects would depend on the order of ties."""
    strides = t.stride()
    order = sorted(range(t.dim()), key=lambda d: (-strides[d], d))
    whole = t.resolve_conj().resolve_neg().permute(order)
    original = torch.ones([1] * t.dim(), dtype=torch.bool)
    for d, axis in enumerate(order):
        if sizes[axis] == t.shape[axis]:
            continue
        index = torch.arange(sizes[axis])
        whole = whole.index_select(d, index % t.shape[axis])
        original = original & (index < t.shape[axis]).reshape([-1 if e == d else 1 for e in range(t.dim())])
    if whole.is_floating_point() or whole.is_complex():
        wide = torch.complex128 if whole.is_complex() else torch.float64
        drawn = torch.rand(whole.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(_SEED))
        factors = torch.where(original, 1.0, 1 - drawn * (1 - _SMALLEST_FACTOR))
        whole = (whole.to(wide) * factors).to(t.dtype)
    inverse = [order.index(d) for d in range(t.dim())]
    return whole.contiguous().permute(inverse)


def _finite_share(fn: Callable[..., Any], call: Call) -> float | None:
    """Share of the call's floating results that are finite, 1 if it has none; None if the CPU refuses the call, or if
    a result is too large to be worth it."""
    output = result(fn, call)
    if output is None or max((t.numel() for t in tensors((output,), {})), default=0) > _MOST_ELEMENTS:
        return None
    total = finite = 0
    for leaf in pytree.tree_leaves(output):
        if (
            isinstance(leaf, torch.Tensor)
            and leaf.layout is torch.strided
            and (leaf.is_floating_point() or leaf.is_complex())
        ):
            total += leaf.numel()
            finite += int(torch.isfinite(leaf.to(torch.float64) if leaf.itemsize == 1 else leaf).sum())
        elif isinstance(leaf, float):
            total += 1
            finite += math.isfinite(leaf)
    return finite / total if total else 1.0
