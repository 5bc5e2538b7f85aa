"""Launches on a time axis, as a Chrome trace: ui.perfetto.dev, chrome://tracing and TensorBoard open it.

The format is Google's "Trace Event Format": complete events ("X") with times in microseconds. There is a row for the
launches, one for memory, and one for each core that computes: where that is short, the core waits for the others or for
memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from spyre_backend.cost.model import Cost

_LAUNCHES, _MEMORY, _CORES = 0, 1, 2  # rows; core n is row _CORES + n
_MICROSECONDS = 1e6


def events(launches: Iterable[tuple[str, Cost]]) -> Iterator[dict[str, Any]]:
    """The events of (name of the program, cost) one after the other, from time 0 on."""
    yield {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "simulated"}}
    yield _row(_LAUNCHES, "launches")
    yield _row(_MEMORY, "memory")
    start, named = 0.0, 0
    for program, cost in launches:
        for core in range(named, cost.division.cores):
            yield _row(_CORES + core, f"core {core}")
        named = max(named, cost.division.cores)
        yield _event(_LAUNCHES, program, start, cost.seconds, told(cost))
        yield _event(_MEMORY, str(cost.pattern), start, cost.memory_s, {"read": cost.read, "written": cost.written})
        for core, (kind, seconds) in enumerate(cost.by_core()):
            yield _event(_CORES + core, str(kind), start, seconds, {"program": program})
        start += cost.seconds


def told(cost: Cost) -> dict[str, Any]:
    """What is worth knowing of a launch, ready for JSON."""
    return {
        "bound by": str(cost.bound),
        "division": str(cost.division),
        "cause": str(cost.cause),
        "lost us": round(cost.lost_s * _MICROSECONDS, 3),
        "multiply-accumulates": cost.multiply_accumulates,
        "utilisation": round(cost.utilisation, 4),
    }


def save(launches: Iterable[tuple[str, Cost]], path: str | Path) -> None:
    """Writes a trace. Raises `OSError`."""
    text = json.dumps({"traceEvents": list(events(launches)), "displayTimeUnit": "ns"})
    Path(path).write_text(text, encoding="utf-8")


def _row(row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 0, "tid": row, "name": "thread_name", "args": {"name": name}}


def _event(row: int, name: str, start: float, seconds: float, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": start * _MICROSECONDS, "dur": seconds * _MICROSECONDS}
    return {"ph": "X", "pid": 0, "tid": row, "name": name, **times, "args": args}
