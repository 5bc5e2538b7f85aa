"""A child that reports line by line and ends in every way there is."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from conformance.isolation import forked
from conformance.isolation.forked import End


def ends() -> Iterator[bytes]:
    yield b"1"
    yield b"2"


def crashes() -> Iterator[bytes]:
    yield b"1"
    os.kill(os.getpid(), signal.SIGSEGV)
    yield b"2"


def is_killed() -> Iterator[bytes]:
    yield b"1"
    os.kill(os.getpid(), signal.SIGKILL)
    yield b"2"


def hangs() -> Iterator[bytes]:
    yield b"1"
    time.sleep(60)


def raises() -> Iterator[bytes]:
    yield b"1"
    raise KeyError("x")


def exits() -> Iterator[bytes]:
    yield b"1"
    sys.exit(3)


def leaves() -> Iterator[bytes]:
    yield b"1"
    os._exit(0)


@pytest.mark.parametrize(
    ("produce", "lines", "end", "detail"),
    [
        (ends, [b"1", b"2"], End.DONE, "exit status 0"),
        (crashes, [b"1"], End.CRASH, "SIGSEGV"),
        (is_killed, [b"1"], End.CRASH, "SIGKILL"),
        (hangs, [b"1"], End.TIMEOUT, "no answer in 0.5 s"),
        (raises, [b"1"], End.FAULT, "exit status 70"),
        (exits, [b"1"], End.CRASH, "exit status 3"),
        (leaves, [b"1"], End.DONE, "exit status 0"),
    ],
)
def test_how_a_child_ends(produce, lines: list[bytes], end: End, detail: str) -> None:
    started = time.monotonic()
    report = forked.run(produce, 0.5 if produce is hangs else 30)
    assert (report.lines, report.end, report.detail) == (lines, end, detail)
    assert time.monotonic() - started < 10


def test_a_half_line_is_no_line() -> None:
    def half() -> Iterator[bytes]:
        yield b"whole"
        os.write(max(int(name) for name in os.listdir("/proc/self/fd") if _is_pipe(name)), b"hal")
        os.kill(os.getpid(), signal.SIGKILL)
        yield b"never"

    if sys.platform == "linux":
        assert forked.run(half, 30).lines == [b"whole"]


def _is_pipe(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:")
    except OSError:
        return False


def test_much_is_read() -> None:
    report = forked.run(lambda: (b"x" * 100_000 for _ in range(50)), 30)
    assert [len(line) for line in report.lines] == [100_000] * 50


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel to end the child with its parent")
def test_the_child_ends_with_its_parent() -> None:
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(read)

        def tell() -> Iterator[bytes]:
            os.write(write, str(os.getpid()).encode())
            time.sleep(60)
            yield b""

        forked.run(tell, 60)
        os._exit(0)
    child = int(os.read(read, 100))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    for _ in range(200):
        try:
            with open(f"/proc/{child}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":  # dead, and nobody's
                    break
        except FileNotFoundError:
            break
        time.sleep(0.02)
    else:
        pytest.fail("the child outlived its parent")
    os.close(read)
    os.close(write)
