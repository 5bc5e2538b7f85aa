"""`conformance unlock`: which ops, alone and together, would unlock most models on a backend."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance import blockers, store, traced, unlocking
from conformance.blockers import Goal
from conformance.commands.mistakes import needs
from conformance.commands.runs import format_of
from conformance.records import Manifest, Record
from conformance.report import unlock as reports
from conformance.report.table import render
from conformance.reporting import FEW
from conformance.traced import MODEL_KINDS

WEIGHTS = "weights"  # key in what a suite says of itself: name or glob -> weight
LARGEST_PLAN = 10  # ops
JSON = "json"


def unlock(
    runs: Sequence[str],
    given: str | None,
    goal: str,
    weights: Path | None,
    shape_modes: Sequence[str],
    directions: Sequence[str],
    as_format: str,
    everything: bool,
) -> None:
    """Of runs of one backend: at least one of models, and of the op sweep as many as there are."""
    to = format_of(as_format) if as_format != JSON else None
    needs(goal in set(Goal), f"--goal {goal!r} is unknown; one of {', '.join(Goal)}")
    places = [store.resolve(run) for run in runs]
    manifests = [store.read_manifest(place) for place in places]
    backends = sorted({manifest.backend for manifest in manifests})
    needs(len(backends) == 1, f"the runs are of several backends: {', '.join(backends)}; give those of one")
    records = [record for place in places for record in store.read(place)]
    kept = [record for record in records if _asked_for(record, shape_modes, directions)]
    has_models = any(record.kind in MODEL_KINDS for record in kept)
    calls, notes = _calls(given, places)
    needs(
        has_models or bool(calls),
        f"no record of a model in {', '.join(place.name for place in places)}; `conformance sweep models` makes some",
    )
    if directions:
        calls = _made_in(calls, directions)
    diagnosis = blockers.diagnose(kept, calls, Goal(goal))
    waiting = diagnosis.blockers
    weight = unlocking.weigh(
        [*diagnosis.unlocked, *diagnosis.unknown, *waiting],
        {**_said(manifests), **(_read(weights) if weights is not None else {})},
    )
    found = reports.Unlocks(
        goal=Goal(goal),
        backend=backends[0],
        diagnosis=diagnosis,
        weights=weight,
        alone=unlocking.alone(waiting, weight),
        sets=unlocking.smallest_sets(waiting, weight),
        plan=unlocking.plan(waiting, weight, LARGEST_PLAN),
        notes=[*notes, *_missing(kept, Goal(goal))],
    )
    if to is None:
        sys.stdout.write(json.dumps(reports.as_data(found), indent=1) + "\n")
    else:
        print(render(reports.report(found, None if everything else FEW), to))


def _asked_for(record: Record, shape_modes: Sequence[str], directions: Sequence[str]) -> bool:
    """Ops are evidence in whatever mode; models count in those that are asked for."""
    if record.kind not in MODEL_KINDS:
        return True
    return (not shape_modes or record.shape_mode in shape_modes) and (not directions or record.direction in directions)


def _made_in(calls: Iterable[traced.Traced], directions: Sequence[str]) -> list[traced.Traced]:
    import msgspec

    kept = (
        msgspec.structs.replace(call, users=tuple(user for user in call.users if user.rsplit(":", 1)[1] in directions))
        for call in calls
    )
    return [call for call in kept if call.users]


def _calls(given: str | None, places: Sequence[Path]) -> tuple[list[traced.Traced], list[str]]:
    """Traced calls, and a note where they come from: what is named, else what the runs have, else the newest."""
    own = [place / traced.FILE for place in places if (place / traced.FILE).is_file()]
    try:
        paths = own if own and given is None else [traced.locate(given)]
    except (traced.TracedError, store.StoreError) as error:
        if given is not None:
            raise
        return [], [f"calls of models: none ({error}); a model's blockers are those that its own failure shows"]
    calls = traced.merged(map(traced.read, paths))
    return calls, [f"calls of models: {len(calls)} in {', '.join(map(str, paths))}"]


def _missing(records: Sequence[Record], goal: Goal) -> list[str]:
    notes = []
    if not any(record.kind == "op" for record in records):
        notes.append("op sweep: no run given; calls that would fail alone are not known (`--lane traced` checks them)")
    tells = any(record.fallbacks or record.kernels is not None or record.lowered for record in records)
    if goal is Goal.DEVICE and not tells:
        notes.append("the backend tells nothing of the host: what runs right counts as running on the device")
    return notes


def _said(manifests: Iterable[Manifest]) -> dict[str, float]:
    """Weights as the suites of the runs have said them."""
    found: dict[str, float] = {}
    for manifest in manifests:
        for facts in manifest.suite_facts.values():
            said: Any = facts.get(WEIGHTS)
            found.update(said if isinstance(said, Mapping) else {})
    return found


def _read(path: Path) -> dict[str, float]:
    """A TOML file with a table `weights`: name or glob of a model -> number from 0 on."""
    needs(path.is_file(), f"--weights: there is no file {path}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get(WEIGHTS)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        table = None
        needs(False, f"--weights: {path} is not a TOML file: {error}")
    needs(isinstance(table, dict), f"--weights: {path} has no table [{WEIGHTS}]")
    assert isinstance(table, dict)
    for name, weight in table.items():
        good = isinstance(weight, int | float) and not isinstance(weight, bool) and weight >= 0
        needs(good, f"--weights: {path}: {name!r} weighs {weight!r}, which is no number from 0 on")
    return {name: float(weight) for name, weight in table.items()}
