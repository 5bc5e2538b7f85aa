"""Equal inputs: which of them an op selects, or in which order it takes them, is mostly free.

The gradient of a sort at two equal elements may go to either, and PyTorch's own kernels differ in that. Whether a
result hangs on such a choice is measured, not listed by op: the float64 reference is run on inputs whose equal elements
are moved apart, one way or another. Where its answer changes, the choice is free, if the CPU chooses as well: an op
that shares out the gradient among equal elements (amax), or lets it through at a limit (clamp), has one right answer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.reference import Reference, rms, tensors_of

NOTICEABLE = 1e-5  # of a result's RMS: a change that is no consequence of a smooth move as small as these


def other_choice(reference: Reference, index: int, got: Tensor) -> Tensor | None:
    """The exact gradient at `index` of `tensors_of` had the choice been made that is nearest to `got` (real, float64).

    None where the input has no equal elements or its gradient does not depend on a choice among them. The choice made
    differs from the reference's only among equal elements, and hands out as much: either the same numbers in another
    order, or what one of the runs with elements moved apart gives, with the same sum.
    """
    leaf = tensors_of(reference.same)[index]
    inputs = {i.path: i.value for i in reference.same.inputs}
    x = inputs.get(leaf.path.removesuffix(".grad"))
    if reference.exact is None or not isinstance(x, Tensor) or x.is_complex() or x.shape != got.shape:
        return None
    target = tensors_of(reference.exact)[index].value.double()
    runs = _values(reference, index)
    if not runs or not _has_ties(x):
        return None
    _, group, counts = x.reshape(-1).double().unique(return_inverse=True, return_counts=True)
    flat, mine = target.reshape(-1), got.reshape(-1)
    chosen = torch.stack([r.double().reshape(-1) for r in runs])
    change = NOTICEABLE * (rms(target) or 0.0)
    free = (counts[group] > 1) & ((chosen - flat).abs() > change).any(0)
    if not bool(free.any()):
        return None
    at = free.nonzero().reshape(-1)
    order = at[_ordered(group[at], flat[at])]
    same_numbers = bool(((chosen[0][at[_ordered(group[at], chosen[0][at])]] - flat[order]).abs() <= change).all())
    if not same_numbers and not bool(((chosen - flat).abs() <= change).any(0).all()):
        return None  # what the CPU gives is none of these: it does not choose but shares out
    reordered = flat.clone()
    reordered[at[_ordered(group[at], mine[at])]] = flat[order]
    nearest = torch.where(free, chosen.gather(0, (chosen - mine).abs().argmin(0, keepdim=True))[0], flat)
    conserved = bool((nearest.sum() - flat.sum()).abs() <= NOTICEABLE * (rms(target) or 0.0))
    off = [float((mine - candidate).abs().nan_to_num(0.0).sum()) for candidate in (reordered, nearest)]
    return (nearest if conserved and off[1] < off[0] else reordered).reshape(target.shape)


def is_other_choice(reference: Reference, index: int, got: Tensor) -> bool:
    """Whether the whole numbers `got` (indices) are those of another choice: the same ones in another order where equal
    inputs moved apart change them, or by element one of the numbers that come of that."""
    same = tensors_of(reference.same)[index].value
    runs = _values(reference, index)
    if not runs or not any(isinstance(i.value, Tensor) and _has_ties(i.value) for i in reference.same.inputs):
        return False
    chosen = torch.stack([r.to(same.dtype) for r in runs])
    free = (chosen != same).any(0)
    if bool(((got != same) & ~free).any()):
        return False
    return torch.equal(got[free].sort().values, same[free].sort().values) or bool((chosen == got).any(0)[free].all())


def _has_ties(x: Tensor) -> bool:
    return x.is_floating_point() and x.numel() > 1 and x.double().unique().numel() < x.numel()


def _values(reference: Reference, index: int) -> list[Tensor]:
    """Results at `index` of the runs that did not fail."""
    return [run[index] for run in reference.apart() if isinstance(run[index], Tensor)]


def _ordered(group: Tensor, value: Tensor) -> Tensor:
    """Indices that sort by group, then by value."""
    by_value = value.argsort(stable=True)
    return by_value[group[by_value].argsort(stable=True)]
