"""Which ops stand between a backend and each model, from what was run and from the calls that models make. Pure.

A *blocker* of a model is an op that the backend lacks, wherever that was seen: the model's own failure names it, or the
host computed it, or the call that the model makes fails when it is checked on its own. What no op explains is a blocker
of its own, called `cause: ...`. A model is unlocked by fixing all its blockers, and by nothing less.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from conformance import fingerprints
from conformance.outcomes import FAILED, Outcome, Support, is_mute
from conformance.records import Record
from conformance.support import operator
from conformance.traced import MODEL_KINDS, Traced, subject_of

RIGHT = frozenset({Outcome.PASS, Outcome.BUDGET})
BROKEN = FAILED - {Outcome.BUDGET, Outcome.INFRA}
CAUSE = "cause: "
LANE = "traced"


class Goal(StrEnum):
    """What a model is to do."""

    DEVICE = "on-device"  # run, be right, and leave nothing to the host
    RUNS = "runs"  # run and be right


class Evidence(StrEnum):
    """How it is known that an op blocks a model."""

    NAMED = "named in the failure"
    CULPRIT = "first op to fail"
    FALLBACK = "ran on the host"
    CALL = "call fails alone"
    CALL_FALLBACK = "call alone runs on the host"
    UNEXPLAINED = "failure without an op"


@dataclass
class Diagnosis:
    """What is known of each model on one backend under one goal."""

    unlocked: set[str] = field(default_factory=set)  # models that have reached the goal
    unknown: set[str] = field(default_factory=set)  # models that were not run, and of which no call is known to fail
    evidence: dict[str, dict[str, set[Evidence]]] = field(default_factory=dict)  # model -> blocker -> how that is known
    dtypes: dict[str, set[str]] = field(default_factory=dict)  # blocker -> of the calls that fail alone

    @property
    def blockers(self) -> dict[str, frozenset[str]]:
        return {model: frozenset(found) for model, found in self.evidence.items()}


# --- what blocks a model ----------------------------------------------------------------------------------------------


def diagnose(records: Iterable[Record], calls: Iterable[Traced], goal: Goal) -> Diagnosis:
    """What blocks each model of the records, and each that a call of `calls` is known to block; without a record of a
    model, each that `calls` were traced out of.

    `records` are those of one backend: of models, and as far as there are any of the op sweep. What a model itself did
    decides: the calls of one that reaches the goal are not looked at.
    """
    records, calls = list(records), list(calls)
    swept = {record.subject for record in records if record.kind in MODEL_KINDS}
    of_models: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.kind in MODEL_KINDS and not is_mute(record):
            of_models[record.subject].append(record)
    there = {model: own for model, own in of_models.items() if all(_reached(record, goal) for record in own)}
    refuted = {f"{record.kind}:{model}:{record.direction}" for model, own in there.items() for record in own}
    # A call that a model makes and gets right does not block, however it fails when it is written out alone.
    blocked_calls = _blocked_calls(records, [call for call in calls if not refuted & set(call.users)], goal)
    uses: dict[str, set[str]] = defaultdict(set)
    for call in calls:
        for model in call.models:
            uses[model].add(canonical(call.op))
    everything = frozenset().union(*uses.values()) if uses else frozenset()
    diagnosis = Diagnosis()
    for model in sorted(swept | set(blocked_calls if swept else uses)):
        own = of_models.get(model, [])
        if model in there:
            diagnosis.unlocked.add(model)
            continue
        failing = {(record.kind, record.direction) for record in own if not _reached(record, goal)}
        found = [each for each in blocked_calls.get(model, ()) if not own or each.made_in & failing]
        evidence: dict[str, set[Evidence]] = defaultdict(set)
        for each in found:
            evidence[each.op].add(each.evidence)
            diagnosis.dtypes.setdefault(each.op, set()).add(each.dtype)
        for record in own:
            for op, how in _of_record(record, goal, found, uses[model] or everything, everything):
                evidence[op].add(how)
        if evidence:
            diagnosis.evidence[model] = dict(evidence)
        else:
            diagnosis.unknown.add(model)
    return diagnosis


class _Call(NamedTuple):
    """A call of a model that does not reach the goal when it is checked alone."""

    op: str
    dtype: str
    evidence: Evidence
    made_in: frozenset[tuple[str, str]]  # kinds and directions of the checks in which the model makes it
    record: Record | None


def _reached(record: Record, goal: Goal) -> bool:
    return record.outcome in RIGHT and not (goal is Goal.DEVICE and any(record.fallbacks.values()))


def _blocked_calls(records: Iterable[Record], calls: Iterable[Traced], goal: Goal) -> dict[str, list[_Call]]:
    """Model -> its calls that do not reach the goal alone, as their own samples say, or because only the host has the
    op."""
    records = list(records)
    samples: dict[tuple[str, str, int], list[Record]] = defaultdict(list)
    for record in records:
        if record.kind == "op" and record.lane == LANE:
            samples[record.subject, record.dtype, record.index].append(record)
    on_host = _on_host(records) if goal is Goal.DEVICE else frozenset()
    found: dict[str, list[_Call]] = defaultdict(list)
    for call in calls:
        blocking: list[tuple[str, Evidence, Record | None]] = [
            (op, how, record)
            for record in samples.get((call.op, call.dtype, call.number), ())
            for op, how in _of_call(record, goal)
        ]
        if canonical(call.op) in on_host:
            blocking.append((canonical(call.op), Evidence.CALL_FALLBACK, None))
        for model in call.models if blocking else ():
            made_in = frozenset(_check(user) for user in call.users if subject_of(user) == model)
            found[model] += [_Call(op, call.dtype, how, made_in, record) for op, how, record in blocking]
    return found


def _check(user: str) -> tuple[str, str]:
    kind, _, direction = user.split(":")
    return kind, direction


def _of_call(record: Record, goal: Goal) -> Iterator[tuple[str, Evidence]]:
    if record.outcome in BROKEN:
        yield canonical(record.subject), Evidence.CALL
    elif goal is Goal.DEVICE and record.outcome in RIGHT:
        own = {canonical(record.subject)}  # which may be computed by its overload for `out=`
        hosted = [_as_used(canonical(name), own) for name, count in record.fallbacks.items() if count]
        if not hosted and record.support is Support.FALLBACK:
            hosted = [canonical(record.subject)]
        for op in hosted:
            yield op, Evidence.CALL_FALLBACK


def _on_host(records: Iterable[Record]) -> frozenset[str]:
    """Overloads that right samples of the op sweep left to the host and none computed on the device."""
    hosted: set[str] = set()
    native: set[str] = set()
    for record in records:
        if record.kind == "op" and record.outcome in RIGHT:
            fallbacks = {canonical(name) for name, count in record.fallbacks.items() if count}
            hosted |= fallbacks
            native |= {canonical(name) for name in record.lowered} - fallbacks
    return frozenset(hosted - native)


def _of_record(
    record: Record, goal: Goal, found: Sequence[_Call], used: Collection[str], known: Collection[str]
) -> Iterator[tuple[str, Evidence]]:
    """What one record of a model says about its blockers."""
    if goal is Goal.DEVICE:
        for name, count in record.fallbacks.items():
            if count:
                yield _as_used(canonical(name), used), Evidence.FALLBACK
    if record.outcome not in BROKEN:
        return
    said = record.message if record.outcome is not Outcome.WRONG else ""
    named = [_as_used(op, used) for op in named_ops(said, known)]
    for op in named:
        yield op, Evidence.NAMED
    if record.culprit_op and not named:  # what a compiler says that it lacks is nearer than what fails alone
        yield _as_used(canonical(record.culprit_op), used), Evidence.CULPRIT
    if not named and not record.culprit_op and not any(_explains(each.record, record) for each in found):
        yield CAUSE + (fingerprints.split(record.fingerprint).cause or str(record.outcome)), Evidence.UNEXPLAINED


def _explains(call: Record | None, record: Record) -> bool:
    """Whether a call that fails alone is why the model fails: it fails for the same cause."""
    if call is None or call.outcome not in BROKEN:
        return False
    return fingerprints.split(call.fingerprint).cause == fingerprints.split(record.fingerprint).cause != ""


# --- names of ops -----------------------------------------------------------------------------------------------------

_QUALIFIED = re.compile(r"\b(aten|prims|quantized|torchvision)(?:::|\.)(\w+)(?:\.([A-Za-z]\w*))?")
_LISTED = re.compile(r"\[('[A-Za-z_][\w.]*'(?:, '[A-Za-z_][\w.]*')*)\]")
_BARE = re.compile(r"(?<![\w.:])([A-Za-z_]\w*\.[A-Za-z_]\w*)(?![\w.(])")


def canonical(name: str) -> str:
    """`aten::add.Tensor`, also for `aten.add.Tensor`; the default overload has no suffix."""
    namespace, colons, rest = name.partition("::")
    if not colons:
        namespace, _, rest = name.partition(".")
    return f"{namespace}::{rest.removesuffix('.default')}"


def named_ops(text: str, known: Collection[str]) -> list[str]:
    """The ops that an error message names, each once, in order: `aten::sort.stable`, `torch.aten.sort`, of those that
    are `known` also `sort.stable` alone, and what a list of quoted names has, as compilers that list what they lack
    write it. Such a name is a known operator's where there is one, else it stays the compiler's own."""
    found = [
        canonical(f"{namespace}::{name}" + (f".{overload}" if overload else ""))
        for namespace, name, overload in _QUALIFIED.findall(text)
    ]
    bare = (canonical(f"aten::{name}") for name in _BARE.findall(text))
    listed = [name.strip("' ") for names in _LISTED.findall(text) for name in names.split(",")]
    operators = {operator(name) for name in known}
    for name in listed:
        whole = canonical(f"aten::{name}")
        found.append(whole if whole in known or operator(whole) in operators else name)
    return list(dict.fromkeys([*found, *(name for name in bare if name in known)]))


def _as_used(op: str, used: Collection[str]) -> str:
    """The overload that the model uses, where only the operator was named and it uses one overload of it."""
    if op in used:
        return op
    same = [each for each in used if operator(each) == operator(op)]
    return same[0] if len(same) == 1 else op
