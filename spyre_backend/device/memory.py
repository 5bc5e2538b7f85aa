"""Knobs of the simulated memory that a real device does not have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from spyre_backend.device import _C
from spyre_backend.device.properties import PROPERTIES

LIMIT_VARIABLE = "SPYRE_MEMORY_BYTES"


@contextmanager
def fresh_memory_filled_with(byte: int) -> Iterator[None]:
    """Inside the block every new allocation, its unused tail included, is filled with `byte` (0 to 255).

    255 is NaN in every floating-point format that the device stores and -1 in every integer format.
    """
    if not 0 <= byte <= 255:
        raise ValueError(f"not a byte: {byte}")
    previous = _C.set_fill_byte(byte)
    try:
        yield
    finally:
        _C.set_fill_byte(previous)


@contextmanager
def limited_to(nbytes: int) -> Iterator[None]:
    """Inside the block an allocation that would take the device past `nbytes` raises `torch.OutOfMemoryError`."""
    previous = _C.set_memory_limit(nbytes)
    try:
        yield
    finally:
        _C.set_memory_limit(previous)


def apply_configured_limit() -> None:
    """The memory of the card, or what `$SPYRE_MEMORY_BYTES` says."""
    _C.set_memory_limit(int(os.environ.get(LIMIT_VARIABLE, PROPERTIES.total_memory)))
