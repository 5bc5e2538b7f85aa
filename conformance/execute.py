"""Run one sample on one backend and judge it: the hot path of every sweep.

The compiled result is judged against the CPU, and so is eager on the device where the device is not the CPU. What
fails is run again on one part of the stack after another (`ladder`), to say where it went wrong and whose bug it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from conformance import callables, calls, divergence, fingerprints, ladder, observe, signatures, stages
from conformance.backends import registry
from conformance.cases import Case, Sample
from conformance.isolation import memory
from conformance.judgement.choices import judge, judge_with
from conformance.judgement.findings import Check, Finding, Judgement
from conformance.outcomes import FAILED, Outcome, Owner, Stage, Support, is_undecided
from conformance.records import Record
from conformance.reference import Reference, ReferenceUnavailable, make_reference
from conformance.seen import Seen, merge
from conformance.support import support_of

if TYPE_CHECKING:
    from conformance.backends.protocol import Backend

MESSAGE_LIMIT = 2000  # characters of a message that a record keeps
MODELS_SHOWN = 5
TRACEBACK_LINES = 60  # innermost lines of a traceback that a record keeps

OnStage = Callable[[Stage], None]


class _Meter:
    """Put around each call of a sample: observes it, and adds up what it took."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.parts: list[Seen] = []
        self.wall = 0.0
        self.cpu = 0.0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with observe.observe(self.backend) as seen:
            self.parts.append(seen)
            wall, cpu = time.perf_counter(), time.process_time()
            try:
                yield
            finally:
                self.wall += time.perf_counter() - wall
                self.cpu += time.process_time() - cpu

    def seen(self) -> Seen:
        return merge(self.parts)

    def recompiles(self) -> int:
        """How often the calls so far were compiled again."""
        return sum(item.count for part in self.parts for item in part.recompiles)


def run_sample(
    backend: Backend,
    case: Case,
    sample: Sample,
    *,
    suite: str,
    seed: int = 0,
    on_stage: OnStage | None = None,
) -> Record:
    """The record of one sample on `backend`, which has been set up. Exceptions of the sample are in the record.

    `on_stage` is told each stage before it begins, so that a crash can name it. Compiled state of earlier samples is
    dropped first: each sample compiles afresh.
    """
    tell = on_stage or (lambda stage: None)
    record = Record.of(
        case,
        sample.index,
        suite=suite,
        backend=backend.name,
        outcome=Outcome.PASS,
        seed=seed,
        digest=sample.digest,
        numerics=str(sample.numerics),
        started=time.time(),
    )
    cpu = time.process_time()
    tell(Stage.REFERENCE)
    clock = time.perf_counter()
    reference, refused = _reference(case, sample)
    record.reference_s = time.perf_counter() - clock
    if refused is not None and refused.cause is None:
        record.outcome, record.reason = Outcome.SKIPPED, refused.reason
        return record
    _reset(backend)
    begin = getattr(backend, "begin", None)
    if begin is not None:
        begin(record.sample, calls=1 + len(sample.replays))
    tell(Stage.CAPTURE)
    meter = _Meter(backend)
    result: calls.CallResult | None = None
    failure: Exception | None = None
    try:
        compiled = callables.compiled(backend, case, sample)
        tell(Stage.RUN)
        result = calls.run_sample(
            compiled,
            sample,
            direction=case.direction,
            device=backend.device,
            around=meter,
            cotangents=reference.cotangents if reference is not None else None,
            enough=_enough(backend, sample, meter),
        )
    except Exception as error:
        failure = error
    seen = meter.seen()
    for name, value in seen.record_fields().items():
        setattr(record, name, value)
    record.traced = signatures.pack(seen.traced or ())
    record.run_s = max(0.0, meter.wall - (seen.compile_s or 0.0))
    record.backend_cpu_s = meter.cpu
    tell(Stage.COMPARE)
    clock = time.perf_counter()
    if refused is not None and refused.cause is not None:
        _judge_refusal(record, refused.cause, failure, backend)
    elif failure is not None:
        _fail_by_exception(record, failure, backend)
    elif result is not None and reference is not None:
        left = len(sample.replays) - len(result.replays)
        if left:
            said = f"the last {left} of {1 + len(sample.replays)} calls not run"
            seen.notes["over its budget of recompiles"] = said
            sample = dataclasses.replace(sample, replays=sample.replays[:-left])
            reference = dataclasses.replace(reference, replays=reference.replays[:-left])
        verdict, chosen = judge_with(case, sample, reference, result, registry.capabilities(backend))
        _apply(record, verdict)
        _measure(record, sample, chosen, result)
        if verdict.ok:
            _judge_device_eager(record, case, sample, reference, backend, tell)
        if record.outcome is Outcome.PASS:
            _check_budgets(record, sample, seen)
            record.support = _support(case, sample, seen, backend)
    record.judge_s = time.perf_counter() - clock
    record.cpu_s = time.process_time() - cpu
    if seen.notes:
        record.reason = "; ".join(filter(None, [record.reason, *(f"{k}: {v}" for k, v in seen.notes.items() if v)]))
    if is_undecided(record):
        record.owner = Owner.UNDETERMINED
    unexplained = record.outcome in FAILED and record.outcome is not Outcome.BUDGET and not is_undecided(record)
    if unexplained and reference is not None and not getattr(backend, "control", False):
        tell(Stage.RUN)  # the backend has failed: what follows must not end as undecided
        _climb(record, case, sample, reference, backend, failure)
        _locate(record, case, sample, backend)
    if record.outcome in FAILED:
        record.reason = "; ".join(filter(None, [record.reason, _made_by(sample)]))
    return record


def _reference(case: Case, sample: Sample) -> tuple[Reference | None, ReferenceUnavailable | None]:
    try:
        return make_reference(case, sample), None
    except ReferenceUnavailable as error:
        return None, error


def _enough(backend: Backend, sample: Sample, meter: _Meter) -> Callable[[], bool]:
    """Whether no further call can tell more: of a backend that only captures, once too much was captured anew."""
    allowed = sample.budgets.recompiles
    if allowed is None or not getattr(backend, "only_captures", False):
        return lambda: False
    return lambda: meter.recompiles() > allowed


def _reset(backend: Backend) -> None:
    import torch

    reset = getattr(backend, "reset", None)
    if reset is not None:
        reset()
    else:
        torch.compiler.reset()


def _made_by(sample: Sample) -> str:
    """Which models make the call, for a sample that was traced out of some."""
    models = sorted(sample.notes.get("models", ()))
    shown = ", ".join(models[:MODELS_SHOWN])
    more = f" and {len(models) - MODELS_SHOWN} more" if len(models) > MODELS_SHOWN else ""
    return f"models that make this call: {shown}{more}" if models else ""


# --- verdicts ---------------------------------------------------------------------------------------------------------


def _apply(record: Record, verdict: Judgement) -> None:
    record.compared, record.error = verdict.compared, verdict.error
    record.slack, record.loosest = verdict.slack, verdict.loosest
    record.reason = "; ".join(verdict.notes)
    if not verdict.ok:
        _fail_by_findings(record, verdict.findings)


def _measure(record: Record, sample: Sample, reference: Reference, result: calls.CallResult) -> None:
    """Figures that the sample takes of its results, of wrong ones too: how far off is then worth knowing."""
    if sample.measure is None:
        return
    exact = reference.exact
    try:
        taken = sample.measure(result.tree, reference.same.tree, exact.tree if exact is not None else None)
    except Exception as error:  # results of another structure, say, which is what the record is about then
        said = f"not measured: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        record.reason = "; ".join(filter(None, [record.reason, said]))
    else:
        record.measurements = {name: float(value) for name, value in taken.items()}


def _fail_by_findings(record: Record, findings: tuple[Finding, ...]) -> None:
    first = next((finding for finding in findings if finding.check is not Check.LOOSE), findings[0])
    record.outcome, record.stage = Outcome.WRONG, Stage.COMPARE
    record.support = None if first.check is Check.LOOSE else Support.WRONG
    record.message = "\n".join(str(finding) for finding in findings)[:MESSAGE_LIMIT]
    record.fingerprint = fingerprints.of_finding(str(first.check), first.error_class, op=record.subject)


def _fail_by_exception(record: Record, failure: Exception, backend: Backend) -> None:
    record.stage = stages.stage_of(failure)
    if memory.is_exhausted(str(failure)) or isinstance(failure, MemoryError):
        record.outcome = Outcome.OOM
    elif stages.is_refusal(failure, backend):
        record.outcome, record.support = Outcome.UNSUPPORTED, Support.UNSUPPORTED
    else:
        record.outcome = Outcome.ERROR
    record.message = _said(failure)
    record.traceback = _traceback(failure)
    record.fingerprint = fingerprints.of_exception(failure, op=record.subject, stage=record.stage)


def _said(failure: BaseException) -> str:
    """What an exception says, and where that is cut, what caused it: a dump of a graph must not hide the reason."""
    text = f"{type(failure).__name__}: {failure}"
    root = list(stages.chain(failure))[-1]
    cause = f"{type(root).__name__}: {root}"[: MESSAGE_LIMIT // 2]
    if len(text) <= MESSAGE_LIMIT or root is failure or cause in text[:MESSAGE_LIMIT]:
        return text[:MESSAGE_LIMIT]
    return f"{text[: MESSAGE_LIMIT - len(cause) - 5]}\n...\n{cause}"


def _traceback(failure: BaseException) -> str:
    lines = "".join(traceback.format_exception(failure)).splitlines()
    return "\n".join(lines[-TRACEBACK_LINES:])


def _judge_refusal(record: Record, cause: BaseException, failure: Exception | None, backend: Backend) -> None:
    """Eager on the CPU raises `cause`: the backend must raise too, of the same class underneath."""
    expected = type(cause).__name__
    if isinstance(cause, MemoryError) or memory.is_exhausted(str(cause)):  # no answer, and no sign that there is none
        record.outcome, record.stage, record.owner = Outcome.OOM, Stage.REFERENCE, Owner.UNDETERMINED
        record.message = f"no reference: {expected}: {cause}"[:MESSAGE_LIMIT]
        record.fingerprint = fingerprints.of_exception(cause, op=record.subject, stage=record.stage)
        return
    if failure is None:
        message = f"eager raises {expected} and the backend returns a result"
        _fail_by_findings(record, (Finding(Check.EXCEPTION, "call", message, expected),))
    elif any(isinstance(item, type(cause)) for item in stages.chain(failure)):
        record.compared = 1
        record.reason = f"eager on the CPU raises {expected}, and so does the backend"
    else:
        _fail_by_exception(record, failure, backend)
        record.message = f"eager raises {expected}, the backend {record.message}"[:MESSAGE_LIMIT]


def _judge_device_eager(
    record: Record, case: Case, sample: Sample, reference: Reference, backend: Backend, tell: OnStage
) -> None:
    """Eager on the device is compared with the CPU as well: two wrong answers of one device agree with each other."""
    if backend.device.partition(":")[0] == "cpu":
        return
    tell(Stage.RUN)
    try:
        with callables.borrowed(sample.fn, backend.device) as fn:
            result = calls.run_sample(
                fn, sample, direction=case.direction, device=backend.device, cotangents=reference.cotangents
            )
    except Exception as error:
        _fail_by_exception(record, error, backend)
    else:
        tell(Stage.COMPARE)
        verdict = judge(case, sample, reference, result, registry.capabilities(backend))
        if not verdict.ok:
            _fail_by_findings(record, verdict.findings)
    if record.outcome is not Outcome.PASS:
        record.stage = Stage.RUN
        record.message = f"eager on the device: {record.message}"[:MESSAGE_LIMIT]
    record.rungs = {ladder.DEVICE_EAGER: str(record.outcome)}


def _locate(record: Record, case: Case, sample: Sample, backend: Backend) -> None:
    """Of a model, the part that fails."""
    import torch

    if not isinstance(sample.fn, torch.nn.Module):
        return
    replay = re.search(r"\breplay\[(\d+)\]", record.message.partition("\n")[0])
    check = fingerprints.check_of(record.fingerprint) if record.outcome is Outcome.WRONG else None
    call = 1 + int(replay[1]) if replay else 0
    culprit = divergence.locate(backend, case, sample, call=call, check=check)
    if culprit is not None:
        record.culprit_module, record.culprit_op = f"{culprit.path or '(all)'} {culprit.kind}", culprit.op
        record.reason = "; ".join(filter(None, [record.reason, f"first to fail: {culprit}"]))


def _check_budgets(record: Record, sample: Sample, seen: Seen) -> None:
    counts = {
        "graph_breaks": seen.break_count,
        "recompiles": sum(item.count for item in seen.recompiles),
        "fallbacks": sum((seen.fallbacks or {}).values()),
    }
    exceeded = sample.budgets.exceeded(counts)
    if exceeded:
        stage = Stage.RUN if "fallbacks" in exceeded else Stage.CAPTURE  # it is Dynamo that breaks and recompiles
        record.outcome, record.stage, record.message = Outcome.BUDGET, stage, exceeded
        record.fingerprint = fingerprints.of_budget(exceeded, op=record.subject, stage=stage)


def _support(case: Case, sample: Sample, seen: Seen, backend: Backend) -> Support | None:
    told = [seen.lowered, seen.fallbacks, seen.kernels]
    if all(item is None for item in told) and (seen.graphs or getattr(backend, "control", False)):
        return None  # something was compiled, and the backend tells nothing: no need to ask eager
    prepared = calls.prepare(sample.args, sample.kwargs, direction=case.direction)
    try:
        with callables.borrowed(sample.fn) as fn:
            dispatched = observe.eager_ops(callables.driven(sample, fn), prepared.args, prepared.kwargs)
    except Exception:
        return None  # a mode in the sample itself can refuse ours; then there is no evidence
    return support_of(
        dispatched,
        seen.lowered,
        seen.fallbacks,
        seen.custom_kernels,
        seen.kernels,
        seen.break_count,
        graphs=seen.graphs,
        own_device=backend.device.partition(":")[0] != "cpu",
    )


def _climb(
    record: Record,
    case: Case,
    sample: Sample,
    reference: Reference,
    backend: Backend,
    failure: Exception | None,
) -> None:
    failed = (
        ladder.step_of(ladder.BACKEND, failure, backend)
        if failure is not None
        else ladder.Step(ladder.BACKEND, record.outcome, stage=record.stage)
    )
    climb = ladder.climb(case, sample, reference, backend, judge, failed=failed)
    record.rungs, record.owner = climb.rungs, climb.owner
    if climb.stage is not None:
        record.stage = climb.stage
    record.reason = "; ".join(filter(None, [record.reason, climb.reason]))
