"""What was seen of one sample, and of several calls of it together. Pure: imports no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from conformance.records import GraphBreak, Recompile


class Seen(msgspec.Struct, kw_only=True):
    """What happened inside an `observe` block; filled when it ends. Seconds are wall-clock, sizes bytes.

    None means that nobody can tell. Names are those of `Record` where it has the field.
    """

    graphs: int | None = None
    breaks: list[GraphBreak] = []
    recompiles: list[Recompile] = []
    kernels: int | None = None
    custom_kernels: dict[str, int] | None = None
    fallbacks: dict[str, int] | None = None
    lowered: dict[str, int] | None = None
    transfers: int | None = None
    bytes_moved: int | None = None
    device_s: float | None = None
    traced: list[str] | None = None
    cache_hits: int | None = None
    cache_misses: int | None = None
    compile_s: float | None = None
    compile_stages_s: dict[str, float] = {}
    peak_memory: int | None = None
    device_peak_memory: int | None = None
    notes: dict[str, str] = {}

    @property
    def break_count(self) -> int:
        return sum(item.count for item in self.breaks)

    def record_fields(self) -> dict[str, Any]:
        """Keyword arguments for `Record`; what is unknown is left out."""
        own = {"transfers", "bytes_moved", "traced", "notes"}
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name not in own}
        return {name: value for name, value in fields.items() if value is not None}


def merge(parts: Sequence[Seen]) -> Seen:
    """What was seen in several `observe` blocks of one sample, as if it had been one block."""
    if len(parts) == 1:
        return parts[0]
    merged = Seen()
    for part in parts:
        for name in Seen.__struct_fields__:
            ours, theirs = getattr(merged, name), getattr(part, name)
            if theirs is None:
                continue
            if name in ("peak_memory", "device_peak_memory"):
                value: Any = max(ours or 0, theirs)
            elif isinstance(theirs, dict) and name != "notes":
                value = dict(Counter(ours or {}) + Counter(theirs))
            elif isinstance(theirs, dict):
                value = ours | theirs
            else:
                value = theirs if ours is None else ours + theirs
            setattr(merged, name, value)
    breaks: Counter[tuple[str, str]] = Counter()
    recompiles: Counter[tuple[str, str]] = Counter()
    for item in merged.breaks:
        breaks[item.reason, item.place] += item.count
    for again in merged.recompiles:
        recompiles[again.guard, again.place] += again.count
    merged.breaks = [GraphBreak(reason, place, count) for (reason, place), count in breaks.items()]
    merged.recompiles = [Recompile(guard, place, count) for (guard, place), count in recompiles.items()]
    return merged
