"""The kinds of wrong result that the control backend `mutant` makes, each one observable thing.

A damage looks at one call that was right, spoils it and says what it did, or says None where the call offers nothing of
the kind. Nothing is patched: damages act on the values that a call returns, and on its inputs after the call.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

OTHER_DTYPE = {
    torch.float64: torch.float32,
    torch.float32: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.complex128: torch.complex64,
    torch.complex64: torch.complex128,
    torch.int64: torch.int32,
    torch.int32: torch.int64,
    torch.int16: torch.int32,
    torch.int8: torch.int16,
    torch.uint8: torch.int16,
    torch.bool: torch.uint8,
}


@dataclass
class Run:
    """One call that was made on `inputs` and returned `leaves`; a damage edits both in place."""

    inputs: list[Tensor]  # tensor inputs, after the call
    before: list[Tensor | None]  # copies of them from before; None where they cannot be copied plainly
    paths: list[str]
    leaves: list[Any]  # of the output
    choose: random.Random
    index: int = 0  # of the call
    calls: int = 1  # how many will be made
    first: list[Any] = field(default_factory=list)  # the leaves of call 0, undamaged
    use_first: bool = False  # the whole result of call 0 is to be returned, whatever its structure
    fired: Callable[[str], None] = lambda _detail: None  # for damage that happens later, in the backward pass


class Damage(NamedTuple):
    apply: Callable[[Run], str | None]  # what was done, or None where it does not apply
    needs: str  # what a call must offer


# --- helpers ----------------------------------------------------------------------------------------------------------


def is_plain(value: Any) -> bool:
    """A dense strided tensor without lazy bits, whose elements each have a place of their own."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_nested or value.is_quantized:
        return False
    apart = all(stride or size <= 1 for size, stride in zip(value.shape, value.stride(), strict=True))
    return apart and not value.is_conj() and not value.is_neg() and type(value) in (Tensor, torch.nn.Parameter)


def share_memory(left: Any, right: Any) -> bool:
    """Whether two tensors lie in one storage."""
    if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
        return False
    try:
        address = left.untyped_storage().data_ptr()
        return address != 0 and address == right.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and some subclasses have none
        return False


def same_bits(left: Any, right: Any) -> bool:
    """Same shape, dtype and bits; NaN equals NaN."""
    if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
        return type(left) is type(right) and bool(left == right)
    if left.shape != right.shape or left.dtype != right.dtype or not (is_plain(left) and is_plain(right)):
        return left is right
    # Clones: `contiguous()` keeps the stride of a dimension of size 1, which `view(dtype)` does not take.
    compact = [t.detach().clone(memory_format=torch.contiguous_format) for t in (left, right)]
    as_bytes = [t.reshape(-1).view(torch.uint8) for t in compact]
    return torch.equal(*as_bytes)


def fresh(run: Run, accept: Callable[[Tensor], bool]) -> int | None:
    """One of the plain output tensors that share memory with no input and no other output, chosen by the seed."""
    found = [
        i
        for i, leaf in enumerate(run.leaves)
        if is_plain(leaf)
        and not any(share_memory(leaf, other) for other in run.inputs)
        and not any(share_memory(leaf, other) for j, other in enumerate(run.leaves) if j != i)
        and accept(leaf)
    ]
    return run.choose.choice(found) if found else None


class _Edit(torch.autograd.Function):
    """A copy with the same strides, edited in place; gradients pass through unchanged."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, edit: Callable[[Tensor], None]) -> Tensor:
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        copy.copy_(value)
        edit(copy)
        return copy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


def _copy(value: Tensor) -> Tensor:
    """A copy with the same strides, whatever gaps they leave."""
    return _Edit.apply(value, lambda _: None)


def _positions(mask: Tensor) -> list[tuple[int, ...]]:
    return [tuple(index) for index in mask.nonzero().tolist()]


def _is_float(value: Tensor) -> bool:
    return value.is_floating_point() and value.element_size() > 1


def _edit_where(run: Run, mask_of: Callable[[Tensor], Tensor], new: Callable[[Tensor], Any], what: str) -> str | None:
    """Replaces one element among those that `mask_of` marks by `new(element)`."""
    i = fresh(run, lambda leaf: _is_float(leaf) and bool(mask_of(leaf).any()))
    if i is None:
        return None
    position = run.choose.choice(_positions(mask_of(run.leaves[i])))

    def edit(copy: Tensor) -> None:
        copy[position] = new(copy[position].clone())

    run.leaves[i] = _Edit.apply(run.leaves[i], edit)
    return f"{run.paths[i]}{list(position)}: {what}"


# --- the damages ------------------------------------------------------------------------------------------------------


def element(run: Run) -> str | None:
    def usable(leaf: Tensor) -> bool:
        if leaf.is_floating_point():
            return _is_float(leaf) and bool(leaf.isfinite().any())
        return leaf.numel() > 0 and (not leaf.is_complex() or bool(leaf.isfinite().any()))

    i = fresh(run, usable)
    if i is None:
        return _plain_value(run)
    value = run.leaves[i].detach()
    inexact = value.is_floating_point() or value.is_complex()
    position = run.choose.choice(_positions(value.isfinite() if inexact else torch.ones_like(value, dtype=torch.bool)))

    def edit(copy: Tensor) -> None:
        copy[position] = _another(copy, position)

    run.leaves[i] = _Edit.apply(run.leaves[i], edit)
    return f"{run.paths[i]}{list(position)} is {run.leaves[i][position].item()} instead of {value[position].item()}"


def _another(values: Tensor, position: tuple[int, ...]) -> Any:
    """A finite value that differs from `values[position]` by about twice the RMS of the finite ones."""
    old = values[position].item()
    if not (values.is_floating_point() or values.is_complex()):
        return not old if values.dtype is torch.bool else int(old) ^ 1
    wide = values.to(torch.complex128 if values.is_complex() else torch.float64)
    rms = float(wide[wide.isfinite()].abs().square().mean().sqrt())
    step = 2 * rms if 0 < rms < float("inf") else 1.0
    real = old.real if values.is_complex() else old
    moved = old - step if real > 0 else old + step
    there = torch.tensor(moved, dtype=values.dtype)
    return moved if bool(there.isfinite().all()) and there.item() != old else old / 2 or 1.0


def _plain_value(run: Run) -> str | None:
    for i, leaf in enumerate(run.leaves):
        if isinstance(leaf, bool | int | float):
            run.leaves[i] = not leaf if isinstance(leaf, bool) else 0.0 if leaf != leaf else leaf + 1
            return f"{run.paths[i]} is {run.leaves[i]} instead of {leaf}"
        if isinstance(leaf, torch.Size) and leaf:
            run.leaves[i] = torch.Size((leaf[0] + 1, *leaf[1:]))
            return f"{run.paths[i]} is {run.leaves[i]} instead of {leaf}"
    return None


def nan(run: Run) -> str | None:
    return _edit_where(run, Tensor.isnan, torch.ones_like, "a finite number instead of NaN")


def infinity(run: Run) -> str | None:
    def largest(value: Tensor) -> Tensor:
        return torch.full_like(value, torch.finfo(value.dtype).max).copysign(value)

    return _edit_where(run, Tensor.isinf, largest, "the largest finite number instead of infinity")


def zero_sign(run: Run) -> str | None:
    return _edit_where(run, lambda leaf: leaf == 0, torch.neg, "a zero of the other sign")


def dtype(run: Run) -> str | None:
    i = fresh(run, lambda leaf: leaf.dtype in OTHER_DTYPE)
    if i is None:
        return None
    was = run.leaves[i].dtype
    run.leaves[i] = run.leaves[i].to(OTHER_DTYPE[was])
    return f"{run.paths[i]} is {run.leaves[i].dtype} instead of {was}"


def strides(run: Run) -> str | None:
    i = fresh(run, lambda leaf: leaf.numel() > 0 and any(size > 1 for size in leaf.shape))
    if i is None:
        return None
    value: Tensor = run.leaves[i]
    backwards = tuple(reversed(range(value.dim())))
    other = value.permute(backwards).contiguous().permute(backwards)
    if other.stride() == value.stride():
        other = value.contiguous()
    if sum(size > 1 for size in value.shape) == 1 or other.stride() == value.stride():
        other = torch.stack([value, value], dim=-1).select(-1, 0)
    run.leaves[i] = other
    return f"{run.paths[i]} has strides {tuple(other.stride())} instead of {tuple(value.stride())}"


def shape(run: Run) -> str | None:
    i = fresh(run, lambda leaf: True)
    if i is None:
        return None
    run.leaves[i] = run.leaves[i].unsqueeze(0)
    return f"{run.paths[i]} has one more dimension, {tuple(run.leaves[i].shape)}"


def last_row(run: Run) -> str | None:
    i = fresh(run, lambda leaf: leaf.dim() > 0 and leaf.shape[0] > 1 and bool((leaf[-1] != 0).any()))
    if i is None:
        return None
    run.leaves[i] = _Edit.apply(run.leaves[i], lambda copy: copy[-1].zero_())
    return f"{run.paths[i]}: the last row was not computed"


def swapped(run: Run) -> str | None:
    tensors = [i for i, leaf in enumerate(run.leaves) if isinstance(leaf, Tensor)]
    for i, j in itertools.pairwise(tensors):
        if not same_bits(run.leaves[i], run.leaves[j]):
            run.leaves[i], run.leaves[j] = run.leaves[j], run.leaves[i]
            return f"{run.paths[i]} and {run.paths[j]} are swapped"
    return None


def lost_mutation(run: Run) -> str | None:
    for i, (after, before) in enumerate(zip(run.inputs, run.before, strict=True)):
        if before is not None and not same_bits(after, before):
            for k, leaf in enumerate(run.leaves):
                if share_memory(leaf, after):  # keep what is returned, lose what was written
                    run.leaves[k] = _copy(leaf) if is_plain(leaf) else leaf.clone()
            after.data.copy_(before)
            return f"input {i} is as it was before the call"
    return None


def broken_alias(run: Run) -> str | None:
    for i, leaf in enumerate(run.leaves):
        if any(share_memory(leaf, other) for other in run.inputs):
            if is_plain(leaf):
                run.leaves[i] = _copy(leaf)
            elif leaf.requires_grad or leaf.is_conj() or leaf.is_neg():
                run.leaves[i] = leaf.clone()
            else:  # expanded: the same strides on a copy of the memory
                memory = torch.empty(0, dtype=leaf.dtype).set_(leaf.untyped_storage().clone())
                run.leaves[i] = memory.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())
            return f"{run.paths[i]} is a copy, not a view of an input"
    return None


def extra_mutation(run: Run) -> str | None:
    order = sorted(range(len(run.inputs)), key=lambda i: run.inputs[i].requires_grad)
    for i in order:
        value, before = run.inputs[i], run.before[i]
        alone = not any(share_memory(value, leaf) for leaf in run.leaves)
        if before is None or value.numel() == 0 or not alone or not same_bits(value, before):
            continue
        if value.is_floating_point() and not _is_float(value):
            continue
        position = tuple(run.choose.randrange(size) for size in value.shape)
        value.data[position] = _another(torch.nan_to_num(before), position)
        return f"input {i}{list(position)} was written to"
    return None


def gradient(run: Run) -> str | None:
    leaves = [t for t in run.inputs if t.requires_grad and t.is_leaf]
    if not leaves or not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in run.leaves):
        return None
    done: list[int] = []

    def spoil(number: int) -> Callable[[Tensor], Tensor | None]:
        def hook(grad: Tensor) -> Tensor | None:
            if done or grad.layout is not torch.strided or not bool(grad.isfinite().any()):
                return None
            done.append(number)
            position = _positions(grad.isfinite())[0]
            spoiled = grad.clone() if is_plain(grad) else grad.clone(memory_format=torch.contiguous_format)
            spoiled[position] = _another(grad, position)
            run.fired(f"the gradient of input {number} is wrong at {list(position)}")
            return spoiled

        return hook

    for number, tensor in enumerate(run.inputs):
        if tensor.requires_grad and tensor.is_leaf:
            tensor.register_hook(spoil(number))
    return "the gradient of an input, once one is computed"


def stale(run: Run) -> str | None:
    if run.index == 0:
        return "a later call returns the first call's result, once there is one" if run.calls > 1 else None
    if len(run.first) == len(run.leaves) and all(map(same_bits, run.first, run.leaves)):
        return None
    run.use_first = True
    run.fired(f"call {run.index} returned the result of call 0")
    return "a later call returned the first call's result"


DAMAGES: Mapping[str, Damage] = {
    "element": Damage(element, "an output with a finite element that is no alias"),
    "nan": Damage(nan, "an output with a NaN"),
    "inf": Damage(infinity, "an output with an infinity"),
    "zero-sign": Damage(zero_sign, "a floating output with a zero"),
    "dtype": Damage(dtype, "an output tensor that is no alias"),
    "strides": Damage(strides, "an output with more than one element that is no alias"),
    "shape": Damage(shape, "an output tensor that is no alias"),
    "last-row": Damage(last_row, "an output with two rows whose last is not zero"),
    "swapped-outputs": Damage(swapped, "two different outputs"),
    "lost-mutation": Damage(lost_mutation, "an input that is written to"),
    "broken-alias": Damage(broken_alias, "an output that is a view of an input"),
    "extra-mutation": Damage(extra_mutation, "an input that is not written to and not returned"),
    "gradient": Damage(gradient, "an input with a gradient"),
    "stale-replay": Damage(stale, "a second call with another result"),
}
LATER = frozenset({"gradient", "stale-replay"})
"""Damages that are announced when the call is made, and done only if the occasion comes."""
