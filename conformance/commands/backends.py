"""`conformance backends` and `conformance backends check`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from conformance.backends import registry
from conformance.backends.protocol import Backend
from conformance.report.table import Table, render
from conformance.settings import SettingsError, parse_backend_options

Chosen = tuple[str, Sequence[str] | None, Sequence[str] | None, str | None]
"""Backend, modules to import, options, device: as on the command line."""


def show(as_json: bool) -> None:
    """All installed backends."""
    found = registry.available()
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
        return
    rows = [(each.name, "yes" if each.available else "no", each.detail, each.source) for each in found]
    print(render(Table("Backends", ("name", "available", "version, or why not", "from"), rows)))
    print("\nAlso: path/to/file.py:NAME, compile:NAME (registered with Dynamo), device:MODULE (PrivateUse1).")


def check(
    name: str, modules: Sequence[str] | None, options: Sequence[str] | None, device: str | None, seconds: float
) -> int:
    """0 when the backend fulfils the protocol, else 1."""
    from conformance.backends.check import check as run

    backend = find((name, modules, options, device))
    rows = run(backend, seconds=seconds)
    marks = {True: "ok", False: "FAILED", None: "-"}
    table = Table(
        f"Protocol of {backend.name}", ("check", "", "detail"), [(r.check, marks[r.ok], r.detail) for r in rows]
    )
    print(render(table))
    failed = sum(row.ok is False for row in rows)
    print(f"\n{failed} of {len(rows)} checks failed" if failed else f"\nall {len(rows)} checks hold")
    return 1 if failed else 0


def find(chosen: Chosen) -> Backend:
    """The backend that was asked for on the command line, not yet set up. Raises one line for what is wrong."""
    name, modules, options, device = chosen
    try:
        parsed = parse_backend_options(options) if options else None
    except ValueError as error:
        raise SettingsError(f"--backend-options: {error}") from None
    return registry.find(name, backend_import=tuple(modules or ()), backend_options=parsed, device=device)
