"""Counts of what left the device: operators that ran on the host, and copies between host and device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spyre_backend.device import _C


def fallback_counts() -> dict[str, int]:
    """Calls that ran on the host, by operator and overload (`aten::add.Tensor`), since the last reset."""
    return _C.fallback_counts()


def reset_fallback_counts(*, warnings: bool = False) -> None:
    """Count from zero. With `warnings`, also warn again for operators that were warned about."""
    _C.reset_fallback_counts()
    if warnings:
        _C.reset_fallback_warnings()


def transfer_counts() -> dict[str, int]:
    """Copies and bytes by direction: `host_to_device`, `host_to_device_bytes`, and so on. `item()` is a copy."""
    return _C.transfer_counts()


def reset_transfer_counts() -> None:
    """Count from zero."""
    _C.reset_transfer_counts()


def difference(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What was added between two counts; names with no change are left out."""
    changes = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: change for name, change in changes.items() if change}


@contextmanager
def count_fallbacks() -> Iterator[dict[str, int]]:
    """Yields a dict that holds, when the block has ended, the host fallbacks made inside it. Blocks may nest."""
    before = fallback_counts()
    delta: dict[str, int] = {}
    try:
        yield delta
    finally:
        delta.update(difference(before, fallback_counts()))


@contextmanager
def count_transfers() -> Iterator[dict[str, int]]:
    """The same for copies, with the names of `transfer_counts`."""
    before = transfer_counts()
    delta: dict[str, int] = {}
    try:
        yield delta
    finally:
        delta.update(difference(before, transfer_counts()))
