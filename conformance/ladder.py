"""Finds the stage of a failure, and whose it is, by running the sample on one part of the stack after another.

The rungs add one upstream stage each; all but the device's own run on the CPU. The first that fails names the stage.
It is upstream's failure only if it fails as the backend did; it is the backend's if everything upstream passes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.backends.protocol import Backend, Capabilities
from conformance.cases import Case, Direction, Sample
from conformance.isolation import forked
from conformance.outcomes import Outcome, Owner, Stage
from conformance.stages import chain, is_refusal, stage_of

if TYPE_CHECKING:
    from conformance.reference import Reference

DEVICE_EAGER = "device eager"
BACKEND = "backend"
UPSTREAM_RUNGS: tuple[tuple[str, str, Stage], ...] = (
    # rung, Dynamo backend, the stage that it adds
    ("dynamo", "eager", Stage.CAPTURE),
    ("aot_eager", "aot_eager", Stage.AUTOGRAD),
    ("aot_eager_decomp_partition", "aot_eager_decomp_partition", Stage.DECOMPOSE),
    ("inductor", "inductor", Stage.LOWER),
)
"""In the order in which a sample passes through them. CPU Inductor is last: it calls the C++ compiler."""

NO_COMPILER = re.compile(
    r"InvalidCxxCompiler|FileNotFoundError.*(g\+\+|clang|c\+\+)|CppCompileError(?s:.*)Python\.h: No such"
)
"""`class: message` of what CPU Inductor raises where there is no C++ compiler, or no Python headers for it."""

Judge = Callable[..., Any]
"""`judge(case, sample, reference, result, capabilities)`, returning something with a bool `ok`."""


class Step(msgspec.Struct, frozen=True):
    """How one rung ended."""

    rung: str
    outcome: Outcome
    error: str = ""  # the exception's class, of the innermost cause
    message: str = ""  # its first line
    stage: Stage | None = None  # where that exception arose


class Climb(msgspec.Struct, frozen=True):
    """What the ladder says. `rungs` is in the order climbed and ends with the first that failed, then the backend."""

    rungs: dict[str, str]
    stage: Stage | None  # None: nothing failed when it was run again
    owner: Owner
    reason: str = ""  # why this stage and owner, in a sentence


def climb(
    case: Case,
    sample: Sample,
    reference: Reference,
    backend: Backend,
    judge: Judge,
    *,
    failed: Step | None = None,
    seconds: float | None = 120.0,
    isolate: bool = True,
) -> Climb:
    """Climbs until a rung fails and says what follows from it.

    `failed` is how the backend failed when the sample was run; without it the backend is run again at the end. With
    `isolate` the rungs run in a forked child, so that a rung that crashes or hangs for more than `seconds` in all is a
    failed rung and nothing more. The compiled state of this process is reset where the rungs run in it.
    """
    rungs = _rungs(case, sample, reference, backend, judge, again=failed is None)
    backward = case.direction is Direction.BACKWARD
    steps = _forked(rung_names(backend), rungs, seconds, backward=backward) if isolate else None
    if steps is None:
        steps = list(rungs)
    if failed is not None:
        steps.append(msgspec.structs.replace(failed, rung=BACKEND))
    dubious = bool(getattr(reference, "nondeterministic", False))
    return conclude(steps, dubious=dubious, on_inductor=on_inductor(backend))


def rung_names(backend: Backend) -> list[str]:
    """The rungs that are climbed for this backend, in order, without the backend's own."""
    eager = [] if backend.device.partition(":")[0] == "cpu" else [DEVICE_EAGER]
    return [*eager, *(rung for rung, _, _ in UPSTREAM_RUNGS)]


def on_inductor(backend: Backend) -> bool:
    """Whether the backend compiles through upstream Inductor, so that Inductor's failures are also its own."""
    return 'backend="inductor"' in backend.compile_source or getattr(backend, "dynamo_name", "") == "inductor"


def conclude(steps: Sequence[Step], *, dubious: bool = False, on_inductor: bool = True) -> Climb:
    """The stage and the owner that follow from how the rungs ended. Pure; the rules are the branches, in order."""
    rungs = {step.rung: str(step.outcome) for step in steps}
    backend = next((step for step in steps if step.rung == BACKEND), None)
    first = next((step for step in steps if step.outcome not in (Outcome.PASS, Outcome.INFRA)), None)
    if backend is not None and backend.outcome in (Outcome.PASS, Outcome.INFRA):
        return Climb(rungs, None, Owner.UNDETERMINED, "the backend did not fail again")
    stage = None if first is None else _stage(first)
    if backend is None or first is None:
        return Climb(rungs, stage, Owner.UNDETERMINED, "the backend was not reached")
    if dubious:
        return Climb(rungs, stage, Owner.UNDETERMINED, "the CPU itself gives different answers in two eager runs")
    if first.rung == DEVICE_EAGER:
        return Climb(rungs, stage, Owner.BACKEND, "eager on the device fails already")
    if first.rung == BACKEND:
        gone = next((step for step in steps if step.outcome is Outcome.INFRA), None)
        if gone is not None and (on_inductor or gone.rung != "inductor"):
            reason = f"everything upstream passes, but {gone.rung} could not be run: {gone.message or gone.error}"
            return Climb(rungs, stage, Owner.UNDETERMINED, reason)
        return Climb(rungs, stage, Owner.BACKEND, "everything upstream passes")
    if not _alike(first, backend):
        reason = f"{first.rung} fails with {_shown(first)}, the backend with {_shown(backend)}"
        return Climb(rungs, stage, Owner.UNDETERMINED, reason)
    if first.rung == "inductor" and not on_inductor:
        reason = "CPU Inductor, which the backend does not use, fails likewise: the reference may be at fault"
        return Climb(rungs, stage, Owner.UNDETERMINED, reason)
    return Climb(rungs, stage, Owner.UPSTREAM, f"{first.rung} alone fails likewise: {_shown(first)}")


def _stage(step: Step) -> Stage:
    """Of the first failed rung: the stage that the rung adds; of Inductor's and the backend's, what the error says."""
    added = {rung: stage for rung, _, stage in UPSTREAM_RUNGS} | {DEVICE_EAGER: Stage.RUN}
    if step.rung == BACKEND or (step.rung == "inductor" and step.stage in (Stage.LOWER, Stage.CODEGEN, Stage.RUN)):
        return step.stage or (Stage.COMPARE if step.outcome is Outcome.WRONG else Stage.RUN)
    return added[step.rung]


def _alike(left: Step, right: Step) -> bool:
    """The same kind of outcome, and where both raised, the same exception underneath."""
    return left.outcome is right.outcome and (not left.error or not right.error or left.error == right.error)


def _shown(step: Step) -> str:
    return f"{step.outcome} ({step.error})" if step.error else str(step.outcome)


# --- running the rungs ------------------------------------------------------------------------------------------------


def _rungs(
    case: Case, sample: Sample, reference: Reference, backend: Backend, judge: Judge, *, again: bool
) -> Iterator[Step]:
    """Climbs lazily; ends after the first failed rung (and then the backend, if it is to be run again)."""
    from conformance.backends.registry import capabilities
    from conformance.callables import compiled, on_device

    declared = capabilities(backend)
    # Upstream's rungs are allowed what the backend is allowed: only an error of that size explains the backend's.
    on_cpu = msgspec.structs.replace(declared, device="cpu")
    dynamic = case.shape_mode.dynamic
    plan: list[tuple[str, str, Capabilities, Callable[[], Callable[..., Any]]]] = []
    if backend.device.partition(":")[0] != "cpu":
        plan.append((DEVICE_EAGER, backend.device, declared, lambda: on_device(sample.fn, backend.device)))
    plan += [(rung, "cpu", on_cpu, _compiler(sample, name, dynamic)) for rung, name, _ in UPSTREAM_RUNGS]
    last = (BACKEND, backend.device, declared, lambda: compiled(backend, case, sample))
    for rung, device, allowed, make in plan:
        step = _run(rung, device, allowed, make, case, sample, reference, judge, backend)
        yield step
        if step.outcome not in (Outcome.PASS, Outcome.INFRA):
            break
    if again:
        yield _run(*last, case, sample, reference, judge, backend)
    _reset(backend)


def _compiler(sample: Sample, name: str, dynamic: bool | None) -> Callable[[], Callable[..., Any]]:
    def compile() -> Callable[..., Any]:
        import torch

        from conformance.callables import on_device

        return torch.compile(on_device(sample.fn), backend=name, dynamic=dynamic, fullgraph=sample.fullgraph)

    return compile


def _run(
    rung: str,
    device: str,
    allowed: Capabilities,
    make: Callable[[], Callable[..., Any]],
    case: Case,
    sample: Sample,
    reference: Reference,
    judge: Judge,
    backend: Backend,
) -> Step:
    from conformance import calls

    _reset(backend)
    try:
        result = calls.run_sample(
            make(), sample, direction=case.direction, device=device, cotangents=reference.cotangents
        )
    except Exception as error:
        return step_of(rung, error, backend if rung in (BACKEND, DEVICE_EAGER) else None)
    try:
        ok = judge(case, sample, reference, result, allowed).ok
    except Exception as error:  # a fault of ours, which says nothing about the rung
        return Step(rung, Outcome.INFRA, type(error).__name__, f"cannot be judged: {error}"[:300])
    return Step(rung, Outcome.PASS if ok else Outcome.WRONG)


def step_of(rung: str, error: BaseException, backend: Backend | None = None) -> Step:
    """The step of a rung that raised. For the innermost cause see `stages.chain`."""
    causes = list(chain(error))
    root = type(causes[-1]).__name__
    message = (str(causes[-1]).strip().splitlines() or [""])[0][:300]
    if rung == "inductor" and any(NO_COMPILER.match(f"{type(cause).__name__}: {cause}") for cause in causes):
        return Step(rung, Outcome.INFRA, root, message)
    outcome = Outcome.UNSUPPORTED if is_refusal(error, backend) else Outcome.ERROR
    return Step(rung, outcome, root, message, stage_of(error))


def _reset(backend: Backend) -> None:
    import torch

    reset: Mapping[str, Any] | Callable[[], None] | None = getattr(backend, "reset", None)
    torch.compiler.reset()
    if callable(reset):
        reset()


# --- in a child -------------------------------------------------------------------------------------------------------

REFUSED = b"!"
"""What the child says instead of steps when autograd does not work in it."""


def _forked(names: Sequence[str], rungs: Iterator[Step], seconds: float | None, *, backward: bool) -> list[Step] | None:
    """The steps, taken in a forked child; the rung in which it died or hung is a failed step.

    None where the rungs cannot run in a fork: autograd refuses to once it has started threads for a device, which a
    `backward` pass on one does. Then they run in this process.
    """
    if not hasattr(os, "fork"):
        return None

    def produce() -> Iterator[bytes]:
        _use_one_thread()
        if not backward or _autograd_works():
            yield from (msgspec.json.encode(step) for step in rungs)
        else:
            yield REFUSED

    report = forked.run(produce, seconds)
    if report.lines[:1] == [REFUSED]:
        return None
    steps = [msgspec.json.decode(line, type=Step) for line in report.lines]
    if report.end is not forked.End.DONE:
        steps.append(_cut_short(names, steps, ENDS[report.end], report.detail))
    return steps


ENDS = {
    forked.End.CRASH: Outcome.CRASH,
    forked.End.TIMEOUT: Outcome.TIMEOUT,
    forked.End.FAULT: Outcome.INFRA,
}


def _use_one_thread() -> None:
    """A fork copies one thread: a parallel region would wait for ever for the others of its OpenMP team."""
    import torch

    torch.set_num_threads(1)


def _autograd_works() -> bool:
    import torch

    try:
        torch.ones(1, requires_grad=True).sum().backward()
    except RuntimeError:
        return False
    return True


def _cut_short(names: Sequence[str], steps: Sequence[Step], outcome: Outcome, message: str) -> Step:
    """The step that was under way: the next of `names`, or the backend once a rung has failed."""
    failed = any(step.outcome not in (Outcome.PASS, Outcome.INFRA) for step in steps)
    rung = BACKEND if failed or len(steps) >= len(names) else names[len(steps)]
    return Step(rung, outcome, "", message)
