"""What the supervisor holds in its hands: a runner, the place in a case, and what the children print."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import time
from pathlib import Path

from conformance.cases import Case
from conformance.isolation import deaths, wire

OUTPUT_LIMIT = 1 << 20  # bytes of a sample's output that go to the log file


class Runner:
    """A forked process that runs cases, as the supervisor sees it."""

    def __init__(self, pid: int, channel: wire.Channel, base_rss: int) -> None:
        self.pid = pid
        self.channel = channel
        self.base_rss = base_rss
        self.pidfd = os.pidfd_open(pid)
        self._alive = select.poll()
        self._alive.register(self.pidfd, select.POLLIN)
        self.ready = False  # between cases: it has cleaned up after the last one
        self.cases = 0
        self.samples = 0  # run in this process
        self.spent = False  # what failed in it may have left it damaged: nothing more is run there

    def rss(self) -> int:
        try:
            with open(f"/proc/{self.pid}/statm") as statm:
                return int(statm.read().split()[1]) * mmap.PAGESIZE
        except (OSError, IndexError):  # it has just gone
            return 0

    def has_ended(self) -> bool:
        return self.channel.closed or bool(self._alive.poll(0))

    def close(self) -> None:
        self.channel.close()
        os.close(self.pidfd)


class Progress:
    """Where in a case we are."""

    def __init__(self, suite: str, case: Case, skip: frozenset[int]) -> None:
        self.suite = suite
        self.case = case
        self.skip = skip
        self.index = self._unskipped(0)
        self.done = False
        self.samples = 0
        self.note = ""
        self._clear()

    def _clear(self) -> None:
        self.started = False
        self.started_at = time.time()
        self.digest = self.numerics = ""

    @property
    def sample(self) -> str:
        return self.case.sample_id(self.index)

    def starting(self, message: wire.Starting) -> None:
        self.index = message.index
        self.started = True
        self.digest, self.numerics = message.digest, message.numerics

    def _unskipped(self, index: int) -> int:
        while index in self.skip:
            index += 1
        return index

    def next(self) -> None:
        self.index = self._unskipped(self.index + 1)
        self.note = ""
        self._clear()

    def finish(self, samples: int) -> None:
        self.done = True
        self.samples = samples


class Output:
    """What the children print: to the log file, up to a limit a sample, and its end kept for the records."""

    def __init__(self, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.open("ab", buffering=0)
        self.fd = -1
        self._tail = bytearray()
        self._written = 0
        self._heading = b""

    def attach(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._tail.clear()

    def detach(self) -> None:
        os.close(self.fd)
        self.fd = -1

    def drain(self) -> None:
        """Read what is there, at most a pipe's worth: a child that never stops writing must not hold us."""
        if self.fd < 0:
            return
        for _ in range(16):
            try:
                chunk = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            if not chunk:
                return
            self._log.write(self._heading)
            self._heading = b""
            room = OUTPUT_LIMIT - self._written
            if room > 0:
                self._log.write(chunk[:room])
                if len(chunk) >= room:
                    self._log.write(b"\n[more output of this sample is left out]\n")
            self._written += len(chunk)
            self._tail += chunk
            if len(self._tail) > 2 * deaths.TAIL:
                del self._tail[: -deaths.TAIL]

    def next_sample(self, sample: str = "") -> None:
        """What comes from now on belongs to this sample, or to none."""
        self._tail.clear()
        self._written = 0
        self._heading = f"[conformance] {sample} says:\n".encode() if sample else b""

    def tail(self) -> str:
        return self._tail[-deaths.TAIL :].decode(errors="replace")

    def note(self, text: str) -> None:
        self._log.write(f"[conformance] {text}\n".encode())

    def close(self) -> None:
        self._log.close()


def kill_group(pid: int) -> None:
    """Kill a runner's process group, and the runner itself should it not have made its group yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
