"""What a process can find out about itself, and ask of the kernel."""

from __future__ import annotations

import ctypes
import mmap
import os

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(signum: int) -> None:
    """Have the kernel signal us when our parent dies (Linux)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)


def threads() -> int:
    """Threads of this process (Linux)."""
    return len(os.listdir("/proc/self/task"))


def rss() -> int:
    """Resident bytes of this process (Linux)."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * mmap.PAGESIZE


def data_size() -> int:
    """Bytes that count against RLIMIT_DATA: private writable mappings."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))


def one_line(error: BaseException) -> str:
    """`Class: message` without line breaks."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
