from __future__ import annotations

import pytest

from conformance.isolation import memory


@pytest.mark.parametrize(
    ("text", "exhausted"),
    [
        ("MemoryError", True),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory",
            True,
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("terminate called after throwing an instance of 'std::bad_alloc'", True),
        ("virtual memory exhausted: Cannot allocate memory", True),
        ("RuntimeError: shape mismatch in memory_format", False),
        ("", False),
    ],
)
def test_exhausted_memory_is_told_from_other_failures(text, exhausted):
    assert memory.is_exhausted(text) is exhausted


@pytest.mark.parametrize(
    ("text", "size"),
    [("2G", 2 << 30), ("512M", 512 << 20), ("1.5GiB", 3 << 29), ("100kb", 100 << 10), ("7", 7), (" 0 ", 0)],
)
def test_sizes(text, size):
    assert memory.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "2X", "2 G B", "1e9", "nan"])
def test_what_is_no_size_says_what_one_is(text):
    with pytest.raises(ValueError, match="one looks like 2G"):
        memory.parse_size(text)
