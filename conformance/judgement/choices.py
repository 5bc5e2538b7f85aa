"""Results that hang on which of equal numbers an op takes within the call: the k largest scores, several of them equal.

PyTorch leaves the choice open, so that a backend may make another than the CPU. What is judged wrong is therefore
judged again beside references that choose by another rule (`tiebreaks`), each as right as the first: a result that one
of them agrees with is right. The calls of a sample may differ in the rule, as they may be compiled separately. The
float64 run of a reference chooses as its run in the case's own dtype did, also among numbers that only rounding tells
apart: otherwise it would be the result of another choice.

A backend that chooses row by row, or with an order of its own, agrees with none of them. Its own choices would have to
be known to replay them on the CPU, and compiled code does not tell them; such a result stays wrong, with a note that
says what it depends on.

Equal elements of the inputs, where a gradient follows from the choice, are the matter of `ties`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from conformance import tiebreaks
from conformance.backends.protocol import Capabilities
from conformance.calls import CallResult
from conformance.cases import Case, NumericalClass, Sample
from conformance.judgement.findings import Judgement
from conformance.judgement.judge import judge as judge_beside
from conformance.reference import Reference, bits_equal, results_equal, rms, tensors_of
from conformance.tiebreaks import Alike, Rule, TieBreaking

FAR = 0.25
"""Of the larger of an element and its result's RMS: more than twice of what any bound allows."""
SMALL = 1e-3
"""Of the largest result's RMS: what is smaller may be what is left of terms that cancel, whose bound is larger."""


def judge(
    case: Case, sample: Sample, reference: Reference, result: CallResult, capabilities: Capabilities
) -> Judgement:
    """As `judge.judge`, beside any reference that is as right. Raises as it does."""
    return judge_with(case, sample, reference, result, capabilities)[0]


def judge_with(
    case: Case, sample: Sample, reference: Reference, result: CallResult, capabilities: Capabilities
) -> tuple[Judgement, Reference]:
    """The verdict, and the reference that it is by: the given one, or one with another choice among equal numbers that
    the result agrees with.

    What passes costs next to nothing more. Raises as `judge.judge`.
    """
    composite = sample.numerics is NumericalClass.COMPOSITE  # of other ops the class or a check says what is free
    if reference.nondeterministic or not composite:
        return judge_beside(case, sample, reference, result, capabilities), reference

    reference = _settled(reference)
    verdict = None
    # To judge what fails takes many runs, which are long ones of a model: where it is clear that it does, it can wait.
    if not (isinstance(sample.fn, nn.Module) and _far_off(reference, result)):
        verdict = judge_beside(case, sample, reference, result, capabilities)
        if verdict.ok:
            return verdict, reference
    others = _others(reference)
    rules = _nearest(reference, others, result)
    chosen = _by_rules(reference, others, rules)
    if verdict is None or rules:
        verdict = judge_beside(case, sample, chosen, result, capabilities)
    if verdict.ok and not rules:
        return verdict, chosen
    # A run of the CPU is judged as the backend's is: what passes beside the reference is no other result.
    on_cpu = msgspec.structs.replace(capabilities, device="cpu")

    def refused(got: CallResult) -> set[int]:
        return _far_off(reference, got) or _calls(judge_beside(case, sample, reference, got, on_cpu))

    if verdict.ok:
        by = " and the ".join(dict.fromkeys(rules.values()))
        site = _site(reference, others, set(rules), refused) or "an op"
        return _noted(verdict, f"depends on which of equal numbers {site} takes: right with the {by}"), chosen
    varying = _varying(reference, others)
    site = _site(reference, others, _calls(verdict, varying), refused)
    if not site:
        return verdict, chosen
    by = " and with the ".join(Rule)
    said = f"wrong with the choice of the CPU, with the {by}; another choice may be as right"
    return _noted(verdict, f"depends on which of equal numbers {site} takes: {said}"), chosen


# --- other references -------------------------------------------------------------------------------------------------


def _settled(reference: Reference) -> Reference:
    """With float64 runs that choose as the CPU did in the case's own dtype, among numbers that are equal but for
    rounding, in calls where the two are far apart."""
    if not isinstance(reference.sample.fn, nn.Module):
        return reference
    apart = {
        number
        for number, each in enumerate(_each(reference))
        if each.exact is not None and _far_elements(each.exact, each.same)
    }
    other = reference.within(None, lambda: Alike(None)) if apart else None
    return reference if other is None else _with_calls(reference, other, apart)


def _others(reference: Reference) -> dict[Rule, Reference]:
    """Those by the rules that change anything."""
    found = {rule: reference.within(rule, functools.partial(Alike, rule)) for rule in Rule}
    return {rule: other for rule, other in found.items() if other is not None and not _same_bits(reference, other)}


def _same_bits(left: Reference, right: Reference) -> bool:
    return all(results_equal(a.same, b.same) for a, b in zip(_each(left), _each(right), strict=True))


def _varying(reference: Reference, others: Mapping[Rule, Reference]) -> set[str]:
    """The results that another choice changes, by their paths as a finding has them."""
    found = set()
    for other in others.values():
        for number, (ours, theirs) in enumerate(zip(_each(reference), _each(other), strict=True)):
            prefix = f"replay[{number - 1}] " if number else ""
            for a, b in zip(tensors_of(ours.same), tensors_of(theirs.same), strict=False):
                if not bits_equal(a.value, b.value):
                    found.add(prefix + a.path)
    return found


def _nearest(reference: Reference, others: Mapping[Rule, Reference], result: CallResult) -> dict[int, Rule]:
    """Number of a call -> the rule whose result is the nearest; without calls to which the CPU's choice is."""
    found = {}
    for number, (each, got) in enumerate(zip(_each(reference), [result, *result.replays], strict=False)):
        nearest = _distance(each.same, got)
        for rule, other in others.items():
            distance = _distance(_each(other)[number].same, got)
            if distance < nearest:
                nearest, found[number] = distance, rule
    return found


def _by_rules(reference: Reference, others: Mapping[Rule, Reference], rules: Mapping[int, Rule]) -> Reference:
    for number, rule in rules.items():
        reference = _with_calls(reference, others[rule], {number})
    return reference


def _with_calls(reference: Reference, other: Reference, numbers: Collection[int]) -> Reference:
    """`reference` with the calls of these numbers taken from `other`."""
    first, *replays = (
        b if number in numbers else a for number, (a, b) in enumerate(zip(_each(reference), _each(other), strict=True))
    )
    return first.with_replays(replays)


def _each(reference: Reference) -> list[Reference]:
    """Those of the first call and of its replays."""
    return [reference, *reference.replays]


# --- results ----------------------------------------------------------------------------------------------------------


def _far_off(reference: Reference, result: CallResult) -> set[int]:
    """The calls with a floating result that is so far off that no bound allows it. Which are missing is not certain."""
    calls = zip(_each(reference), [result, *result.replays], strict=False)
    return {number for number, (each, got) in enumerate(calls) if _is_far_off(each, got)}


def _is_far_off(reference: Reference, result: CallResult) -> bool:
    from_same = _far_elements(reference.same, result)
    if not from_same or reference.exact is None:
        return bool(from_same)
    from_exact = _far_elements(reference.exact, result)
    return any(index in from_exact and bool((from_exact[index] & off).any()) for index, off in from_same.items())


def _far_elements(expected: CallResult, got: CallResult) -> dict[int, Tensor]:
    """Number of a floating result -> where it is far off; only those with such elements."""
    pairs = [
        (index, a.value.double(), b.value.double())
        for index, (a, b) in enumerate(zip(tensors_of(expected), tensors_of(got), strict=False))
        if _are_comparable(a.value, b.value)
    ]
    sizes = {index: rms(a) or 0.0 for index, a, _ in pairs}
    least = SMALL * max(sizes.values(), default=0.0)
    off = {index: (a - b).abs() > FAR * a.abs().clamp(min=max(least, sizes[index])) for index, a, b in pairs}
    return {index: where for index, where in off.items() if bool(where.any())}


def _are_comparable(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.is_floating_point() and a.shape == b.shape


def _distance(expected: CallResult, got: CallResult) -> float:
    """The largest differences of an element, relative to the size of its result, of all results together."""
    distance = 0.0
    for a, b in ((x.value, y.value) for x, y in zip(tensors_of(expected), tensors_of(got), strict=False)):
        if _are_comparable(a, b):
            off = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a.double() - b.double()).abs())
            worst = float(off.nan_to_num(math.inf).max()) if off.numel() else 0.0
            distance += worst / (rms(a) or 1.0)
        elif not bits_equal(a, b):
            distance += 1.0
    return distance


def _calls(verdict: Judgement, at: Collection[str] | None = None) -> set[int]:
    """The numbers of the calls that something was found in: 0 of the first one, 1 of the first replay. `at`: only what
    was found at these paths."""
    places = [finding.where for finding in verdict.findings]
    places = [where for where in places if at is None or where.removesuffix(" after the call") in at]
    replays = [re.match(r"replay\[(\d+)\]", where) for where in places]
    return {1 + int(found[1]) if found else 0 for found in replays}


def _noted(verdict: Judgement, note: str) -> Judgement:
    return msgspec.structs.replace(verdict, notes=(note, *verdict.notes))


# --- where the choice is made -----------------------------------------------------------------------------------------


def _site(
    reference: Reference,
    others: Mapping[Rule, Reference],
    calls: Collection[int],
    refused: Callable[[CallResult], set[int]],
) -> str:
    """The first op, and its module, whose choice makes the result of one of these calls another; empty: none does.

    `refused(result)`: the calls in which a result is another than that of the reference.
    """
    plain = [each.same for each in _each(reference)]
    for rule, other in others.items():
        results = _as_one([each.same for each in _each(other)])
        clear = _far_off(reference, results) & set(calls)
        changed = clear or (refused(results) & set(calls))
        if not changed:
            continue
        number = min(changed)
        is_other = functools.partial(_far_off, reference) if clear else refused

        def differs(
            mode: TieBreaking, number: int = number, is_other: Callable[[CallResult], set[int]] = is_other
        ) -> bool:
            got = _each(reference)[number].rerun(lambda: mode)
            return number in is_other(_as_one([*plain[:number], got, *plain[number + 1 :]]))

        return str(tiebreaks.decisive(differs, rule) or "")
    return ""


def _as_one(results: Sequence[CallResult]) -> CallResult:
    first, *replays = results
    return dataclasses.replace(first, replays=tuple(replays))
