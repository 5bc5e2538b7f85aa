"""Coverage by ATen overload: which of all that the dispatcher knows ran on the device, after decomposition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec


class OverloadCoverage(msgspec.Struct, frozen=True):
    """Counts of ATen overloads in one run. An overload that fell back to the host in any sample is not native."""

    known: int  # that the dispatcher of the installed torch knows
    core: int  # of them, tagged core ATen
    native: int  # ran on the device in at least one right sample, and on the host in none
    native_core: int
    fallback: int  # ran on the host in at least one sample
    fallback_core: int
    core_fallback: tuple[str, ...]  # core overloads that ran on the host, sorted
    core_missing: tuple[str, ...]  # core overloads that no sample reached on either, sorted
    unknown: tuple[str, ...]  # ran, but the dispatcher does not list them: other namespaces


def known() -> dict[str, list[str]]:
    """All overloads and the core ones, for the manifest of a run. Imports torch."""
    from op_coverage import upstream

    return {"all": list(upstream.overload_names()), "core": sorted(upstream.core_overloads())}


def coverage(records: Iterable[Mapping[str, Any]], overloads: Mapping[str, Iterable[str]]) -> OverloadCoverage:
    """What `records` say about `overloads`, as `known` returned it in the process that ran them (pure; no torch).

    A record is a mapping with `outcome`, `lowered` and `fallbacks` (overload -> count), as in `conformance.records`.
    """
    everything, core = frozenset(overloads["all"]), frozenset(overloads["core"])
    ran: set[str] = set()
    fell_back: set[str] = set()
    for record in records:
        fallbacks = {canonical(name) for name in record.get("fallbacks") or ()}
        fell_back |= fallbacks
        if record.get("outcome") == "pass":
            ran |= {canonical(name) for name in record.get("lowered") or ()} - fallbacks
    native = ran - fell_back
    return OverloadCoverage(
        known=len(everything),
        core=len(core),
        native=len(native & everything),
        native_core=len(native & core),
        fallback=len(fell_back & everything),
        fallback_core=len(fell_back & core),
        core_fallback=tuple(sorted(fell_back & core)),
        core_missing=tuple(sorted(core - native - fell_back)),
        unknown=tuple(sorted((native | fell_back) - everything)),
    )


def canonical(name: str) -> str:
    """`aten::add.Tensor`, also where an observer spells it `aten.add.Tensor`; the default overload has no suffix."""
    namespace, separator, rest = name.partition("::")
    if not separator:
        namespace, _, rest = name.partition(".")
    return f"{namespace}::{rest.removesuffix('.default')}"
