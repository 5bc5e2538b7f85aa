"""Results that hang on which of equal numbers an op takes within the call: the k largest scores, several of them equal.

PyTorch leaves the choice open, so that a backend may make another than the CPU. What is judged wrong is therefore
judged again beside references that choose by another rule (`tiebreaks`), each as right as the first: a result that one
of them agrees with is right. The calls of a sample may differ in the rule, as they may be compiled separately.

A backend that chooses row by row, or with an order of its own, agrees with none of them. Its own choices would have to
be known to replay them on the CPU, and compiled code does not tell them; such a result stays wrong, with a note that
says what it depends on.

Equal elements of the inputs, where a gradient follows from the choice, are the matter of `ties`.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Collection, Sequence

import msgspec

from conformance import tiebreaks
from conformance.backends.protocol import Capabilities
from conformance.calls import CallResult
from conformance.cases import Case, NumericalClass, Sample
from conformance.judgement.findings import Judgement
from conformance.judgement.judge import judge as judge_beside
from conformance.reference import Reference, results_equal
from conformance.tiebreaks import Rule, TieBreaking


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

    What passes costs nothing more. Raises as `judge.judge`.
    """

    verdict = judge_beside(case, sample, reference, result, capabilities)
    composite = sample.numerics is NumericalClass.COMPOSITE  # of other ops the class or a check says what is free
    if verdict.ok or reference.nondeterministic or not composite:
        return verdict, reference
    on_cpu = msgspec.structs.replace(capabilities, device="cpu")

    def refused(got: CallResult) -> set[int]:
        """The calls in which a run of the CPU, judged as the backend's is, is another result than the reference."""
        return _calls(judge_beside(case, sample, reference, got, on_cpu))

    best, chosen, by, site = verdict, reference, reference, ""
    for rule in Rule:
        other = _by_rule(reference, rule)
        if other is None or _same_bits(reference, other):
            continue
        differing = _calls(best) & refused(_results(other))
        if not differing:
            continue
        site = site or _site(reference, min(differing), rule, refused)
        chosen = _with_calls(chosen, other, differing)
        second = judge_beside(case, sample, chosen, result, capabilities)
        if second.ok:
            return _noted(second, f"depends on which of equal numbers {site} takes: right with the {rule}"), chosen
        if len(_calls(second)) < len(_calls(best)):
            best, by = second, chosen
    if not site:
        return verdict, reference
    rules = " and with the ".join(Rule)
    said = f"wrong with the choice of the CPU, with the {rules}; another choice may be as right"
    return _noted(best, f"depends on which of equal numbers {site} takes: {said}"), by


def _noted(verdict: Judgement, note: str) -> Judgement:
    return msgspec.structs.replace(verdict, notes=(note, *verdict.notes))


def _calls(verdict: Judgement) -> set[int]:
    """The numbers of the calls that something was found in: 0 of the first one, 1 of the first replay."""
    replays = [re.match(r"replay\[(\d+)\]", finding.where) for finding in verdict.findings]
    return {1 + int(found[1]) if found else 0 for found in replays}


def _by_rule(reference: Reference, rule: Rule) -> Reference | None:
    return reference.within(rule, lambda: TieBreaking(rule))


def _each(reference: Reference) -> list[Reference]:
    """Those of the first call and of its replays."""
    return [reference, *reference.replays]


def _same_bits(left: Reference, right: Reference) -> bool:
    return all(results_equal(a.same, b.same) for a, b in zip(_each(left), _each(right), strict=True))


def _results(reference: Reference) -> CallResult:
    """What the CPU gave, as if a backend had."""
    return _as_one([each.same for each in _each(reference)])


def _as_one(results: Sequence[CallResult]) -> CallResult:
    first, *replays = results
    return dataclasses.replace(first, replays=tuple(replays))


def _with_calls(reference: Reference, other: Reference, numbers: Collection[int]) -> Reference:
    """`reference` with the calls of these numbers taken from `other`."""
    first, *replays = (
        b if number in numbers else a for number, (a, b) in enumerate(zip(_each(reference), _each(other), strict=True))
    )
    made = copy.copy(first)  # with all that it has computed so far
    made.replays = tuple(replays)
    return made


def _site(reference: Reference, number: int, rule: Rule, refused: Callable[[CallResult], set[int]]) -> str:
    """The first op, and its module, whose choice changes the result of a call."""
    plain = [each.same for each in _each(reference)]

    def differs(mode: TieBreaking) -> bool:
        got = _each(reference)[number].rerun(lambda: mode)
        return number in refused(_as_one([*plain[:number], got, *plain[number + 1 :]]))

    return str(tiebreaks.decisive(differs, rule) or "an op")
