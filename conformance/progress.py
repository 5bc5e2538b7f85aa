"""A progress line with an estimate of the time left, for a terminal and for the log of a CI job."""

from __future__ import annotations

import time
from typing import Any, Protocol

TTY_PERIOD = 0.5  # seconds between updates of the line
LOG_PERIOD = 30.0  # seconds between lines where a line cannot be replaced


class Terminal(Protocol):
    """What is needed of pytest's terminal reporter."""

    def rewrite(self, line: str, **markup: bool) -> None: ...

    def write_line(self, line: str, **markup: bool) -> None: ...

    def ensure_newline(self) -> None: ...


def estimate(elapsed: float, done: int, total: int) -> float | None:
    """Seconds left if the rest goes like what is done; None while too little is done to say."""
    if done < 3 or elapsed < 1.0:
        return None
    return elapsed / done * (total - done)


def clock(seconds: float) -> str:
    """`0:07`, `12:34`, `1:02:03`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class Progress:
    """Counts items and says so. Quiet where the terminal is None.

    `draws`: one line is kept up to date; else a new one is written now and then.
    """

    def __init__(self, terminal: Any | None, *, draws: bool = False, now: Any = time.monotonic) -> None:
        self.terminal = terminal
        self.draws = draws
        self.total = 0
        self.done = 0
        self.unexpected = 0
        self.samples = 0
        self._now = now
        self._started: float | None = None
        self._said = 0.0

    def begin(self, total: int) -> None:
        """All items are collected; the clock starts."""
        self.total = total
        if self._started is None:
            self._started = self._said = self._now()

    def item(self, counts: dict[str, int], unexpected: int) -> None:
        """One more item has ended."""
        self.done += 1
        self.samples += sum(counts.values())
        self.unexpected += unexpected
        self._say()

    def line(self) -> str:
        elapsed = self._now() - (self._started if self._started is not None else self._now())
        left = estimate(elapsed, self.done, self.total)
        percent = 100 * self.done // self.total if self.total else 0
        parts = [
            f"{self.done}/{self.total} cases ({percent}%)",
            f"{self.samples} samples",
            f"{self.unexpected} unexpected",
            f"{clock(elapsed)} elapsed",
        ]
        if left is not None and self.done < self.total:
            parts.append(f"about {clock(left)} left")
        return "conformance: " + ", ".join(parts)

    def _say(self) -> None:
        if self.terminal is None or self._started is None:
            return
        period = TTY_PERIOD if self.draws else LOG_PERIOD
        now = self._now()
        last = self.draws and self.done == self.total
        if now - self._said < period and not last:
            return
        self._said = now
        if self.draws:
            self.terminal.rewrite(self.line(), erase=True)
        else:
            self.terminal.ensure_newline()
            self.terminal.write_line(self.line())
