"""`conformance promote` and `conformance lint`: edit and check expectations."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier

from conformance import expectations, promotion, store, suites
from conformance.cases import Options, Tier
from conformance.commands.mistakes import Mistake, needs
from conformance.globs import is_literal
from conformance.lint import lint as complaints_about
from conformance.records import Manifest, Record
from conformance.settings import DTYPES


def promote(run: str, issue: str, reason: str, torch: str, file: Path | None, dry_run: bool) -> int:
    """0 when the file now says what the run has shown; 1 when something was refused."""
    run_dir = store.resolve(run)
    manifest = store.read_manifest(run_dir)
    version = manifest.versions.get("torch", "")
    needs(bool(version), f"{run_dir}: the manifest does not say with which torch the run was made")
    try:
        needs(expectations.holds(torch, version), f"--torch {torch!r} leaves out torch {version} of the run")
    except InvalidSpecifier:
        raise Mistake(f"--torch {torch!r} is not a PEP 440 specifier such as '<2.15'") from None
    refused = 0
    for path, records in by_file(store.read(run_dir), manifest, file).items():
        made = promotion.promote(records, path, version, issue=issue, reason=reason, torch=torch)
        _tell(made, dry_run, with_reason=bool(issue or reason))
        refused += len(made.refused)
        if made.changed and not dry_run:
            made.write()
    return 1 if refused else 0


def by_file(records: Iterable[Record], manifest: Manifest, file: Path | None) -> dict[Path, list[Record]]:
    """Expectations file -> the records that it is about."""
    given = file or manifest.options.get("expectations")
    found: dict[Path, list[Record]] = defaultdict(list)
    places: dict[str, Path] = {}
    for record in records:
        if given:
            place = Path(given)
        else:
            if record.suite not in places:
                places[record.suite] = directory_of(record.suite)
            place = expectations.file_for(places[record.suite], record.backend)
        found[place].append(record)
    return found


def directory_of(suite: str) -> Path:
    """Where a suite keeps its expectations. Raises `SuiteNotFound`."""
    return Path(getattr(suites.find(suite), "expectations_dir", expectations.DIRECTORY))


def _tell(made: promotion.Promotion, dry_run: bool, with_reason: bool) -> None:
    print(f"{made.path}: " + (("would be changed" if dry_run else "changed") if made.changed else "unchanged"))
    for title in ("added", "extended", "narrowed", "dropped", "refused"):
        for line in getattr(made, title):
            print(f"  {title}: {line}")
    if made.added and not with_reason:
        print("  what was added has no `issue` and no `reason` yet; `conformance lint` asks for one")


def lint(files: list[Path], suite: str, run: str | None, cases: bool) -> int:
    """0 when no file has a fault, else 1."""
    for path in files:
        needs(path.is_file(), f"there is no file {path}")
    places = [(_sharing(suite), files)] if files else _installed()
    records = store.read(store.resolve(run)) if run is not None else []
    faults = seen = 0
    for names, paths in places:
        paths = [path for path in paths if len(expectations.load(path))]
        looked_for = cases and paths and _has_torch()
        ids = set().union(*(_cases(each, paths) for each in _named(names, paths))) if looked_for else None
        for path in paths:
            seen += 1
            of_file = [r for r in records if expectations.file_for(path.parent, r.backend).name == path.name]
            found = complaints_about(path, cases=ids, records=of_file)
            faults += len(found)
            for complaint in found:
                print(complaint)
    if cases and not _has_torch():
        print("entries that match no case were not looked for: torch is not installed")
    print(f"{faults} faults in {seen} files" if faults else f"{seen} files, no fault")
    return 1 if faults else 0


def _installed() -> list[tuple[list[str], list[Path]]]:
    """The files of all suites, and the suites that each file is about: those of one folder share its files."""
    found: dict[Path, list[str]] = defaultdict(list)
    for name in suites.names():
        found[directory_of(name)].append(name)
    return [(names, sorted(folder.glob("*.toml"))) for folder, names in found.items()]


def _sharing(suite: str) -> list[str]:
    """The suite, and those that keep their expectations in the same folder."""
    return [suite, *(name for name in suites.names() if name != suite and directory_of(name) == directory_of(suite))]


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _named(names: Iterable[str], paths: Iterable[Path]) -> list[Any]:
    """Of these suites those whose kind of case the files name: to list the cases of some takes minutes."""
    kinds = {p.partition(":")[0] for path in paths for e in expectations.load(path).entries for p in e.cases}
    found = [suites.find(name) for name in names]
    if any(not is_literal(kind) for kind in kinds):
        return found
    return [suite for suite in found if getattr(suite, "kind", None) in kinds or not hasattr(suite, "kind")]


def _cases(suite: Any, paths: Iterable[Path]) -> set[str]:
    """All cases of the largest tier, and those of further dtypes that the files name."""
    named = {
        p.split(":")[2] for path in paths for e in expectations.load(path).entries for p in e.cases if p.count(":") > 1
    }
    found = {str(case) for case in suite.cases(Options(tier=Tier.NIGHTLY))}
    for dtype in sorted(named & set(DTYPES.split())):
        found |= {str(case) for case in suite.cases(Options(tier=Tier.NIGHTLY, dtypes=(dtype,)))}
    return found
