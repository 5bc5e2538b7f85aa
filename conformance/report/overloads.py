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
    """Overloads of one set, each in one of four groups. Only the first is coverage."""

    known: int
    native: frozenset[str]  # ran on the device in a right sample, and in no sample on the host
    mixed: frozenset[str]  # both, in different samples
    fallback: frozenset[str]  # ran on the host alone
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
    on_device, on_host = wanted & ran, wanted & fell_back
    missing = wanted - on_device - on_host
    return Coverage(len(wanted), on_device - on_host, on_device & on_host, on_host - on_device, missing)


def canonical(name: str) -> str:
    """`aten::add.Tensor`, also where an observer spells it `aten.add.Tensor`; the default overload has no suffix."""
    namespace, colons, rest = name.partition("::")
    if not colons:
        namespace, _, rest = name.partition(".")
    return f"{namespace}::{rest.removesuffix('.default')}"


def overload_table(records: Iterable[Record], manifest: Manifest, limit: int | None = None) -> Table:
    """A line a set of overloads; the notes name core overloads that need the host, at most `limit` of each kind."""
    records = list(records)
    if not any(record.lowered or record.fallbacks for record in records):
        return Table("Coverage by ATen overload", (), ())
    rows = []
    notes: list[str] = []
    for name, overloads in sorted(known(manifest).items()):
        seen = coverage(records, overloads)
        share = Share(len(seen.native) / seen.known) if seen.known else None
        rows.append((name, seen.known, len(seen.native), len(seen.mixed), len(seen.fallback), len(seen.missing), share))
        if name == "core":
            notes = [
                *_named("Core, on the host too", seen.mixed, limit),
                *_named("Core, on the host alone", seen.fallback, limit),
                *_named("Core, never reached", seen.missing, limit),
            ]
    headers = ("set", "known", "on device", "on host too", "on host", "never reached", "on device %")
    return Table("Coverage by ATen overload", headers, rows, notes)


def _named(title: str, names: Collection[str], limit: int | None) -> list[str]:
    shown = sorted(names)[:limit]
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return [f"{title}: {', '.join(shown)}{more}"] if names else []
