"""Tell an exhausted memory from other failures, by what exceptions and dying processes say."""

from __future__ import annotations

import re

# Python; c10's CPU and device allocators; libstdc++; glibc; the C++ compiler; OpenMP.
_EXHAUSTED = re.compile(
    r"MemoryError|OutOfMemoryError|out of memory|can't allocate memory|cannot allocate memory"
    r"|std::bad_alloc|memory exhausted|failed to allocate \d",
    re.IGNORECASE,
)

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def is_exhausted(text: str) -> bool:
    """Whether an error message, or what a process wrote before it died, says that memory ran out."""
    return _EXHAUSTED.search(text) is not None


def parse_size(text: str) -> int:
    """Bytes of `2G`, `512M`, `1.5GiB` or `1000000`; raises `ValueError` that says what a size looks like."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size; one looks like 2G, 512M or 1000000 (bytes)")
    return int(float(match[1]) * _UNITS[match[2].upper()])
