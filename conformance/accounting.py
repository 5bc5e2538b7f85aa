"""Where every case and every sample went: collected = run + skipped + lost, in the whole and on every axis.

A case has run when one of its samples has a result; it is skipped when a reason is known and nothing ran; else it is
lost. A sample is lost when it was announced, or counted in by its case, and has no result; `infra` is none. Pure.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from conformance import store
from conformance.cases import Case
from conformance.outcomes import Outcome
from conformance.records import Accounting, Manifest, Record

AXES = ("kind", "dtype", "shape_mode", "direction", "lane")
NAMED = 3  # ids quoted in a complaint


class Share(NamedTuple):
    """Cases of one value of one axis."""

    collected: int
    run: int
    skipped: int
    lost: int


def account(
    collected: Iterable[str],
    log: store.Log,
    *,
    skipped: Mapping[str, str] | None = None,
    excluded: Mapping[str, int] | None = None,
    deselected: int = 0,
) -> Accounting:
    """The accounting of a run from the case ids collected and what the log says became of them.

    `skipped` maps a case to a reason that is not in the log; `excluded` and `deselected` are passed through.
    """
    cases = list(dict.fromkeys(map(str, collected)))
    fates = _fates(cases, log, skipped or {})
    samples_skipped: Counter[str] = Counter()
    lost = set(log.in_flight)
    ran = 0
    indices: dict[str, set[int]] = defaultdict(set)
    for record in log.records:
        indices[record.case].add(record.index)
        if record.outcome is Outcome.SKIPPED:
            samples_skipped[record.reason or "no reason given"] += 1
        elif record.outcome is Outcome.INFRA:
            lost.add(record.sample)
        else:
            ran += 1
    for case, done in log.cases.items():
        # Indices need not be consecutive: a tier may choose among the samples of a case.
        absent = (index for index in itertools.count() if index not in indices[case])
        lost.update(f"{case}#{index}" for index in itertools.islice(absent, max(0, done.samples - len(indices[case]))))
    return Accounting(
        cases_collected=len(cases),
        cases_run=sum(fate == _RUN for fate in fates.values()),
        cases_skipped=dict(Counter(fate for fate in fates.values() if fate not in (_RUN, _LOST)).most_common()),
        cases_lost=[case for case, fate in fates.items() if fate == _LOST],
        samples_run=ran,
        samples_skipped=dict(samples_skipped.most_common()),
        samples_lost=sorted(lost),
        excluded=dict(excluded or {}),
        deselected=deselected,
    )


_RUN, _LOST = "\0run", "\0lost"  # any other fate is the reason of a skip


def _fates(cases: Iterable[str], log: store.Log, skipped: Mapping[str, str]) -> dict[str, str]:
    ran: set[str] = set()
    reasons: dict[str, str] = {}
    for record in log.records:
        if record.outcome is Outcome.SKIPPED:
            reasons.setdefault(record.case, record.reason or "no reason given")
        elif record.outcome is not Outcome.INFRA:
            ran.add(record.case)
    for case, done in log.cases.items():
        if done.reason:
            reasons.setdefault(case, done.reason)
        elif not done.samples:
            reasons.setdefault(case, "the suite has no sample for it")
    reasons.update(skipped)
    return {case: _RUN if case in ran else reasons.get(case, _LOST) for case in cases}


def by_axis(
    collected: Iterable[str], log: store.Log, skipped: Mapping[str, str] | None = None
) -> dict[str, dict[str, Share]]:
    """Axis -> value -> where its cases went; in each, collected = run + skipped + lost."""
    cases = list(dict.fromkeys(map(str, collected)))
    fates = _fates(cases, log, skipped or {})
    counts: dict[str, dict[str, Counter[str]]] = {axis: defaultdict(Counter) for axis in AXES}
    for text in cases:
        case, _ = Case.parse(text)
        fate = fates[text]
        column = "run" if fate == _RUN else "lost" if fate == _LOST else "skipped"
        for axis in AXES:
            counts[axis][str(getattr(case, axis))].update(("collected", column))
    return {
        axis: {value: Share(*(count[column] for column in Share._fields)) for value, count in sorted(values.items())}
        for axis, values in counts.items()
    }


def problems(
    accounting: Accounting, records: Iterable[Record], previous: Manifest | None = None, *, few: int = 0
) -> list[str]:
    """What makes the run itself a failure, a sentence each; empty when its numbers may be believed.

    That nothing passes is no sign of a broken run where at most `few` samples were asked for.
    """
    a = accounting
    found = []
    if not a.cases_collected:
        left_out = f" ({a.deselected} deselected, {sum(a.excluded.values())} excluded by the suite)"
        found.append("no case was collected" + (left_out if a.deselected or a.excluded else ""))
    accounted = a.cases_run + sum(a.cases_skipped.values()) + len(a.cases_lost)
    if accounted != a.cases_collected:
        found.append(f"{a.cases_collected} cases collected, but {accounted} accounted for")
    if a.cases_lost:
        found.append(f"{len(a.cases_lost)} cases lost: {_some(a.cases_lost)}")
    if a.samples_lost:
        found.append(f"{len(a.samples_lost)} samples lost: {_some(a.samples_lost)}")
    if a.cases_collected and not a.cases_run:
        found.append("no case has run")
    outcomes = Counter(record.outcome for record in records)
    if a.samples_run > few and not outcomes[Outcome.PASS]:
        seen = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        found.append(f"nothing passes at all ({seen}): is the backend set up?")
    if previous is not None:
        found += _drops(a, previous)
    return found


def _drops(now: Accounting, previous: Manifest) -> list[str]:
    before = previous.accounting
    pairs = {
        "cases collected": (before.cases_collected, now.cases_collected),
        "cases run": (before.cases_run, now.cases_run),
        "samples run": (before.samples_run, now.samples_run),
    }
    torch = f" with torch {previous.versions['torch']}" if "torch" in previous.versions else ""
    return [
        f"{name} dropped from {then} in run {previous.run}{torch} to {today}"
        for name, (then, today) in pairs.items()
        if today < then
    ]


def unknown_cases(collected: Iterable[str], records: Iterable[Record]) -> list[str]:
    """Cases that have records but were never collected: the sign of a wrong id."""
    return sorted({record.case for record in records} - set(map(str, collected)))


def previous_run(manifest: Manifest, root: Path | None = None) -> Manifest | None:
    """The newest complete run before this one of the same backend, suites, selection and torch, if there is one.

    Runs from which the user deselected cases (-k) are not comparable: their selection is not known.
    """
    if manifest.accounting.deselected:
        return None
    for path in reversed(store.runs(root)):
        other = store.read_manifest(path)
        earlier = other.complete and other.run != manifest.run and other.started < manifest.started
        if earlier and not other.accounting.deselected and _selection(other) == _selection(manifest):
            return other
    return None


def _selection(manifest: Manifest) -> tuple[object, ...]:
    """What decides which cases a run has; limits and expectations do not."""
    options = {key: value for key, value in manifest.options.items() if key not in ("limits", "expectations")}
    return manifest.backend, manifest.suites, manifest.versions.get("torch"), options


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:NAMED]) + (", …" if len(ids) > NAMED else "")
