"""The simulated clock. It moves only when the simulator says how long something took: the same program always takes the
same time, on every machine. `torch.spyre.Event.elapsed_time` reads it.

Counted in whole picoseconds, so that sums do not depend on their order.
"""

from __future__ import annotations

from spyre_backend.device import _C

PICOSECONDS = 1_000_000_000_000


def now() -> float:
    """Simulated seconds since the process began."""
    return _C.clock_now() / PICOSECONDS


def advance(seconds: float) -> None:
    """Let `seconds` of simulated time pass; raises `ValueError` for a negative span."""
    if seconds < 0:
        raise ValueError(f"time does not run backwards: {seconds} s")
    _C.clock_advance(round(seconds * PICOSECONDS))


def reset() -> None:
    """Back to zero. Events recorded before lose their meaning."""
    _C.clock_reset()
