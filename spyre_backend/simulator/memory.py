"""Loads and stores: strided views of memory where the access is affine, gathers and scatters elsewhere."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from spyre_backend.program.affine import Affine
from spyre_backend.program.opcodes import StoreMode

Tensor = torch.Tensor


@dataclass(frozen=True)
class Space:
    """A concrete iteration space: the extent of each axis, and the dimension that it has in every value."""

    extents: Mapping[str, int]

    @property
    def ndim(self) -> int:
        return len(self.extents)

    def shape(self, axes: frozenset[str] | tuple[str, ...] | None = None) -> list[int]:
        """Extents in axis order; axes that are not in `axes` count 1."""
        return [extent if axes is None or axis in axes else 1 for axis, extent in self.extents.items()]

    def iota(self, axis: str) -> Tensor:
        """The position along `axis`, as an int64 value that varies over that axis alone."""
        shape = [extent if name == axis else 1 for name, extent in self.extents.items()]
        return torch.arange(self.extents[axis]).reshape(shape)


def flat(memory: Tensor) -> Tensor:
    """All elements of the storage from the start of `memory` on, as one dimension."""
    start = memory.storage_offset()
    return torch.as_strided(memory, (storage_elements(memory) - start,), (1,), start)


def storage_elements(memory: Tensor) -> int:
    """How many whole elements the storage of `memory` holds."""
    return memory.untyped_storage().nbytes() // memory.element_size()


def in_range(memory: Tensor, access: Affine, space: Space) -> bool:
    """Whether every point of the access lies inside the storage. An empty space touches nothing."""
    if not all(space.extents.values()):
        return True
    low, high = access.bounds(space.extents)
    return memory.storage_offset() + low >= 0 and memory.storage_offset() + high < storage_elements(memory)


def strided_view(memory: Tensor, access: Affine, space: Space) -> Tensor:
    """The elements that an affine access reads, shaped like the axes that it varies over. A view, unless an axis runs
    backwards."""
    shape, strides, reversed_axes = [], [], []
    offset = memory.storage_offset() + access.offset
    empty = not all(space.extents.values())
    for dim, (axis, extent) in enumerate(space.extents.items()):
        step = access.coefficients.get(axis, 0)
        shape.append(extent if step else 1)
        strides.append(abs(step))
        if step < 0:
            offset += step * (extent - 1)
            reversed_axes.append(dim)
    if empty and not storage_elements(memory):
        return torch.zeros(shape, dtype=memory.dtype)  # there is not even one element to make a view of
    view = torch.as_strided(memory, shape, strides, 0 if empty else offset)
    return view.flip(reversed_axes) if reversed_axes else view


def gather(memory: Tensor, index: Tensor, mask: Tensor | None, other: float | int | bool) -> Tensor:
    """`memory[index]` element by element; where `mask` is false, `other`. Raises IndexError outside the storage."""
    source = flat(memory)
    if mask is not None:
        index = torch.where(mask, index, 0)
        if source.numel() == 0:
            return torch.full(index.shape, other, dtype=memory.dtype)
    _check_range(index, source.numel())
    result = source[index]
    return result if mask is None else torch.where(mask, result, torch.tensor(other, dtype=memory.dtype))


def _check_range(index: Tensor, size: int) -> None:
    if index.numel() == 0:
        return
    low, high = torch.aminmax(index)
    if low < 0 or high >= size:
        touched = int(low if low < 0 else high)
        raise IndexError(f"index out of bounds: a load or store touches element {touched} of {size}")


def store_strided(memory: Tensor, access: Affine, space: Space, axes: tuple[str, ...], value: Tensor) -> bool:
    """Overwrite through a strided view. Returns False, having done nothing, where points of the space collide."""
    if not access.is_injective(space.extents, axes):
        return False
    if any(access.coefficients.get(axis, 0) < 0 for axis in axes):
        return False
    target = strided_view(memory, access, space)
    target.copy_(value.expand(target.shape))
    return True


_SCATTER: dict[StoreMode, Callable[[Tensor, Tensor, Tensor], object]] = {
    StoreMode.OVERWRITE: lambda target, index, value: target.index_put_((index,), value),
    StoreMode.ADD: lambda target, index, value: target.index_put_((index,), value, accumulate=True),
    StoreMode.MIN: lambda target, index, value: target.scatter_reduce_(0, index, value, "amin"),
    StoreMode.MAX: lambda target, index, value: target.scatter_reduce_(0, index, value, "amax"),
    StoreMode.PROD: lambda target, index, value: target.scatter_reduce_(0, index, value, "prod"),
}


def scatter(
    memory: Tensor, index: Tensor, mask: Tensor | None, value: Tensor, shape: list[int], mode: StoreMode
) -> None:
    """Store at computed elements, once per point of `shape`, in order. Raises IndexError outside the storage."""
    index, value = index.expand(shape).reshape(-1), value.expand(shape).reshape(-1)
    if mask is not None:
        kept = mask.expand(shape).reshape(-1)
        index, value = index[kept], value[kept]
    target = flat(memory)
    _check_range(index, target.numel())
    if mode is StoreMode.ADD and target.dtype == torch.bool:
        mode = StoreMode.MAX
    _SCATTER[mode](target, index, value)
