"""Run one sample again and say exactly what goes wrong, for a script that shows it. Imports torch; runs in a child."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from conformance import callables, calls, fingerprints, literals, repro, stages
from conformance.backends import registry
from conformance.cases import Case, Direction, Sample
from conformance.isolation import memory
from conformance.judgement.choices import judge_with
from conformance.judgement.findings import Check, Finding, Judgement
from conformance.outcomes import Outcome, Stage
from conformance.reference import Reference, ReferenceUnavailable, make_reference
from conformance.repro import Failure, Setting

if TYPE_CHECKING:
    from conformance.backends.protocol import Backend

WIDEST = 1e6  # a larger ratio of error and bound says no more than this one


def diagnose(backend: Backend, case: Case, sample: Sample) -> Iterator[bytes]:
    """A `Setting` and then a `Failure` as JSON; only the former where the sample kills the process.

    The backend has been set up. Raises `literals.NotWritable` for inputs that have no source.
    """
    yield msgspec.json.encode(setting_of(backend, case, sample))
    yield msgspec.json.encode(failure_of(backend, case, sample))


def setting_of(backend: Backend, case: Case, sample: Sample) -> Setting:
    """The call as source. Raises `CannotRepro` for a call that has none."""
    backward = case.direction is Direction.BACKWARD
    if sample.drive is not None and not sample.drive_source:
        what = f"{case.sample_id(sample.index)} is more than a call of the model"
        raise repro.CannotRepro(f"{what}, which no script of its own can show; `conformance explain` does")
    pairs = [(sample.args, sample.kwargs), *sample.replays]
    wanted = []
    for args, kwargs in pairs:
        prepared = calls.prepare(args, kwargs, direction=case.direction, differentiable=sample.differentiable)
        wanted.append(prepared.wrt)
    source = literals.Source(pairs, wanted, sample.on_cpu)
    return Setting(
        sample=case.sample_id(sample.index),
        backend=backend.name,
        imports=backend.imports,
        compiled=_compile_source(backend, case, sample),
        device=backend.device,
        fn=sample.source,
        setup=sample.setup,
        module=isinstance(sample.fn, torch.nn.Module),
        call=sample.drive_source or "call(*args, **kwargs)",
        statements=source.statements,
        calls=source.calls,
        backward=backward,
    )


def _compile_source(backend: Backend, case: Case, sample: Sample) -> str:
    source = backend.compile_source.format(dynamic=case.shape_mode.dynamic)
    return source.replace("torch.compile(fn,", "torch.compile(fn, fullgraph=True,", 1) if sample.fullgraph else source


def failure_of(backend: Backend, case: Case, sample: Sample) -> Failure:
    """What goes wrong, as the sweep judges it."""
    try:
        reference = make_reference(case, sample)
    except ReferenceUnavailable as error:
        return _without_reference(backend, case, sample, error)
    declared = registry.capabilities(backend)
    for on_device in (False, True):
        if on_device and backend.device.partition(":")[0] == "cpu":
            break
        try:
            result = calls.run_sample(
                callables.on_device(sample.fn, backend.device) if on_device else _compiled(backend, case, sample),
                sample,
                direction=case.direction,
                device=backend.device,
                cotangents=reference.cotangents,
            )
        except Exception as error:
            return _raised(error, backend, case, on_device=on_device)
        verdict, chosen = judge_with(case, sample, reference, result, declared)
        if not verdict.ok:
            return _wrong(verdict, chosen, result, case, on_device=on_device)
    return Failure(outcome=Outcome.PASS)


def _compiled(backend: Backend, case: Case, sample: Sample) -> Any:
    begin = getattr(backend, "begin", None)
    if begin is not None:
        begin(case.sample_id(sample.index), calls=1 + len(sample.replays))
    return callables.compiled(backend, case, sample)


def _without_reference(backend: Backend, case: Case, sample: Sample, refused: ReferenceUnavailable) -> Failure:
    """Eager on the CPU raises: so must the backend."""
    if refused.cause is None:
        raise repro.CannotRepro(f"{case.sample_id(sample.index)} has no reference: {refused.reason}")
    expected = type(refused.cause).__name__
    try:
        calls.run_sample(_compiled(backend, case, sample), sample, direction=case.direction, device=backend.device)
    except Exception as error:
        if any(isinstance(item, type(refused.cause)) for item in stages.chain(error)):
            return Failure(outcome=Outcome.PASS)
        return msgspec.structs.replace(_raised(error, backend, case, on_device=False), eager_raises=expected)
    finding = Finding(Check.EXCEPTION, "call", f"eager raises {expected} and the backend returns a result", expected)
    return msgspec.structs.replace(_found(finding, case), eager_raises=expected)


def _raised(error: Exception, backend: Backend, case: Case, *, on_device: bool) -> Failure:
    stage = Stage.RUN if on_device else stages.stage_of(error)
    exhausted = isinstance(error, MemoryError) or memory.is_exhausted(str(error))
    refused = Outcome.UNSUPPORTED if stages.is_refusal(error, backend) else Outcome.ERROR
    return Failure(
        outcome=Outcome.OOM if exhausted else refused,
        stage=str(stage),
        fingerprint=fingerprints.of_exception(error, op=case.subject, stage=stage),
        message=f"{type(error).__name__}: {error}",
        on_device=on_device,
    )


def _found(finding: Finding, case: Case) -> Failure:
    return Failure(
        outcome=Outcome.WRONG,
        stage=str(Stage.COMPARE),
        fingerprint=fingerprints.of_finding(str(finding.check), finding.error_class, op=case.subject),
        message=str(finding),
        check=finding.check,
        error_class=finding.error_class,
        where=finding.where,
    )


def _wrong(
    verdict: Judgement, reference: Reference, result: calls.CallResult, case: Case, *, on_device: bool
) -> Failure:
    finding = verdict.findings[0]
    failure = msgspec.structs.replace(_found(finding, case), on_device=on_device)
    if finding.check in repro.NUMBERS:
        return msgspec.structs.replace(failure, atol=_atol(finding, verdict, reference, result))
    return failure


def _atol(finding: Finding, verdict: Judgement, reference: Reference, result: calls.CallResult) -> float:
    """What two right answers may differ by at the place of the finding: between what was allowed and what was seen.

    The geometric mean of the two leaves room on both sides: for another machine's rounding while the bug is there, and
    for a right answer's when it is gone. 0 for what must be equal.
    """
    number, _ = repro.place_of(finding.where)
    expected = reference if number == 0 else reference.replays[number - 1]
    got = result if number == 0 else result.replays[number - 1]
    path = finding.where.partition("] ")[2] if number else finding.where
    path = path.removesuffix(" after the call")
    want_value, got_value = (_leaf(each, path) for each in (expected.same, got))
    if not all(isinstance(v, torch.Tensor) for v in (want_value, got_value)) or want_value.shape != got_value.shape:
        return 0.0
    if not (want_value.is_floating_point() or want_value.is_complex()):
        return 0.0
    finite = want_value.isfinite() & got_value.isfinite()
    if not bool(finite.any()):
        return 0.0
    wide = torch.complex128 if want_value.is_complex() else torch.float64
    seen = float((want_value.to(wide) - got_value.to(wide)).abs()[finite].max())
    slack = verdict.slack
    if slack is None or not slack > 1.0 or finding.check is not Check.VALUES:
        return 0.0 if finding.check is not Check.SPECIAL else 2.0 * seen
    if math.isinf(slack):  # must be equal
        return 0.0
    return seen / math.sqrt(min(slack, WIDEST))


def _leaf(result: calls.CallResult, path: str) -> Any:
    for leaf in (*result.outputs, *result.gradients, *result.inputs):
        if leaf.path == path:
            return leaf.value
    return None
