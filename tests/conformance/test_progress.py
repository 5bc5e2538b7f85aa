from __future__ import annotations

import pytest

from conformance.progress import LOG_PERIOD, Progress, clock, estimate


class Terminal:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.drawn: list[str] = []

    def ensure_newline(self) -> None:
        pass

    def write_line(self, line: str, **_: bool) -> None:
        self.lines.append(line)

    def rewrite(self, line: str, **_: bool) -> None:
        self.drawn.append(line)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (7.4, "0:07"), (754, "12:34"), (3723, "1:02:03")])
def test_clock(seconds, text):
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("elapsed", "done", "total", "left"),
    [(10, 5, 20, 30), (10, 20, 20, 0), (10, 2, 20, None), (0.5, 10, 20, None), (0, 0, 0, None)],
)
def test_estimate(elapsed, done, total, left):
    assert estimate(elapsed, done, total) == left


def run(progress: Progress, now: Clock, items: int, seconds: float) -> None:
    progress.begin(items)
    for _ in range(items):
        now.now += seconds
        progress.item({"pass": 2}, unexpected=1)


def test_a_log_gets_a_line_now_and_then():
    terminal, now = Terminal(), Clock()
    run(Progress(terminal, now=now), now, items=20, seconds=5.0)
    assert terminal.drawn == []
    assert len(terminal.lines) == 100 // LOG_PERIOD
    assert terminal.lines[0] == (
        "conformance: 6/20 cases (30%), 12 samples, 6 unexpected, 0:30 elapsed, about 1:10 left"
    )


def test_a_terminal_is_kept_up_to_date_to_the_end():
    terminal, now = Terminal(), Clock()
    run(Progress(terminal, draws=True, now=now), now, items=20, seconds=0.1)
    assert terminal.lines == []
    assert 3 <= len(terminal.drawn) <= 6
    assert terminal.drawn[-1].startswith("conformance: 20/20 cases (100%), 40 samples")


def test_no_terminal_no_words():
    now = Clock()
    progress = Progress(None, now=now)
    run(progress, now, items=20, seconds=100.0)
    assert progress.done == 20
