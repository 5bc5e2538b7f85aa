"""Room for Python frames.

CPython keeps the frames of a thread in chunks of 16 KB (`DATA_STACK_CHUNK_SIZE` in `pystate.c`, since 3.11). It maps a
chunk when a call finds no room in the last one, and unmaps it when that call returns: where a loop calls across such a
border, each call costs two system calls and a page fault. The deep stacks of a compiler meet a border in most samples;
compiling one then mapped a chunk thousands of times.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TypeVar

Result = TypeVar("Result")

ROOM = 2**20
"""Bytes for the frames of all calls below: some 2,000 of them."""

_SLOT = 8  # bytes


def _call(function: Callable[[], Result]) -> Result:
    return function()


# A chunk is the smallest 16 KB·2ⁿ that holds the frame that asks for it. One of just over ROOM gets twice ROOM.
_roomy = FunctionType(_call.__code__.replace(co_stacksize=ROOM // _SLOT + 1), {}, "with_room")


def with_room(function: Callable[[], Result]) -> Result:
    """`function()`, whose own calls find room for their frames in one chunk, which is touched only as it is used."""
    return _roomy(function)
