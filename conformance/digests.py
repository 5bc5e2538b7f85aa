"""Hashes of what a sample calls: two samples with equal digests checked the same thing."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from typing import Any

import torch

from conformance import trees


def stable_repr(value: Any) -> str:
    """A representation that has no address in it and does not depend on the order of sets."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({sorted(map(stable_repr, value))})"
    if isinstance(value, torch.Generator):
        return f"Generator({value.initial_seed()})"
    if callable(value) and not isinstance(value, type | torch.dtype):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return f"{type(value).__name__}:{value!r}"


def of_calls(fn: str, calls: Iterable[tuple[Any, Any]]) -> str:
    """A hash of a callable's source and of the inputs of `calls`: values, shapes, strides, dtypes, layouts, structure
    and all non-tensor arguments. Equal in every process for equal inputs. 32 hex digits."""
    state = hashlib.blake2b(fn.encode(), digest_size=16)
    for args, kwargs in calls:
        state.update(trees.structure((args, kwargs)).encode())
        for _, leaf in trees.flatten((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                _update(state.update, leaf)
            else:
                state.update(stable_repr(leaf).encode())
    return state.hexdigest()


def _update(update: Callable[[bytes], None], tensor: torch.Tensor) -> None:
    update(f"{tensor.dtype}{tensor.layout}{tensor.is_nested}".encode())
    if tensor.is_nested:
        for part in tensor.unbind():
            _update(update, part)
        return
    update(f"{tuple(tensor.shape)}{tensor.is_conj()}{tensor.is_neg()}".encode())
    if tensor.layout is not torch.strided:
        for part in _sparse_parts(tensor):
            _update(update, part)
        return
    update(struct.pack(f"{tensor.dim()}q", *tensor.stride()))
    # A clone: `contiguous()` keeps the stride of a dimension of size 1, which `view(dtype)` does not take.
    flat = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
    update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")


def _sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    match tensor.layout:
        case torch.sparse_coo:
            coalesced = tensor.coalesce()
            return coalesced.indices(), coalesced.values()
        case torch.sparse_csr | torch.sparse_bsr:
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
        case torch.sparse_csc | torch.sparse_bsc:
            return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
        case layout:
            raise NotImplementedError(f"no digest for tensors of layout {layout}")
