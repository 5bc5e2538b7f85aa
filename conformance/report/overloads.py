"""Coverage by ATen overload: which of all that the dispatcher knows ran on the device, after decomposition. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from conformance.outcomes import Outcome
from conformance.records import Manifest, Record
from conformance.report.table import Share, Table

FACT = "overloads"  # key in what a suite's `manifest()` says: {"all": [...], "core": [...]}


class Coverage(msgspec.Struct, frozen=True):
    """Overloads of one set. One that fell back to the host in any sample is `fallback`, not `native`."""

    known: int
    native: frozenset[str]  # ran on the device in a right sample
    fallback: frozenset[str]
    missing: frozenset[str]  # no sample reached them


def known(manifest: Manifest) -> dict[str, list[str]]:
    """Set name -> overloads, as the suites of the run have said; empty where none has."""
    found: dict[str, set[str]] = {}
    for facts in manifest.suite_facts.values():
        for name, overloads in _as_mapping(facts.get(FACT)).items():
            found.setdefault(name, set()).update(overloads)
    return {name: sorted(overloads) for name, overloads in found.items()}


def _as_mapping(value: Any) -> Mapping[str, Iterable[str]]:
    return value if isinstance(value, Mapping) else {}


def coverage(records: Iterable[Record], overloads: Collection[str]) -> Coverage:
    """What the records say about a set of overloads (`aten::add.Tensor`)."""
    ran: set[str] = set()
    fell_back: set[str] = set()
    for record in records:
        fallbacks = {canonical(name) for name in record.fallbacks}
        fell_back |= fallbacks
        if record.outcome is Outcome.PASS:
            ran |= {canonical(name) for name in record.lowered} - fallbacks
    wanted = frozenset(map(canonical, overloads))
    native, fallback = wanted & (ran - fell_back), wanted & fell_back
    return Coverage(len(wanted), native, fallback, wanted - native - fallback)


def canonical(name: str) -> str:
    """`aten::add.Tensor`, also where an observer spells it `aten.add.Tensor`; the default overload has no suffix."""
    namespace, colons, rest = name.partition("::")
    if not colons:
        namespace, _, rest = name.partition(".")
    return f"{namespace}::{rest.removesuffix('.default')}"


def overload_table(records: Iterable[Record], manifest: Manifest) -> Table:
    """A line a set of overloads; the notes name the core overloads that need the host."""
    records = list(records)
    if not any(record.lowered or record.fallbacks for record in records):
        return Table("Coverage by ATen overload", (), ())
    rows, notes = [], []
    for name, overloads in sorted(known(manifest).items()):
        seen = coverage(records, overloads)
        share = Share(len(seen.native) / seen.known) if seen.known else None
        rows.append((name, seen.known, len(seen.native), len(seen.fallback), len(seen.missing), share))
        if name == "core":
            notes += [f"Core, on the host: {', '.join(sorted(seen.fallback))}"] if seen.fallback else []
            notes += [f"Core, never reached: {', '.join(sorted(seen.missing))}"] if seen.missing else []
    headers = ("set", "known", "on device", "fallback", "never reached", "on device %")
    return Table("Coverage by ATen overload", headers, rows, notes)
