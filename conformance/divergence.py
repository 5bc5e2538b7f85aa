"""Which part of a model fails: the first module that does so alone, given what it gets in eager mode, and the op in it.

Both sides are fed the same inputs module by module, so that an error does not count again in all that follows. The
descent goes from the model to its parts in the order in which they run, into the first that fails, until none of the
parts of a module fails; that module is the smallest cut of the model that shows the failure.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor, nn

from conformance import observe, parts, trees
from conformance.callables import compiled, direction_of, driven, on_device
from conformance.calls import invoke, prepare, run_sample
from conformance.cases import Case, Direction, NumericalClass, Sample
from conformance.isolation import forked
from conformance.judgement.choices import judge
from conformance.judgement.findings import Check
from conformance.parts import Call
from conformance.reference import ReferenceUnavailable, make_reference

if TYPE_CHECKING:
    from conformance.backends.protocol import Backend


OF_NUMBERS = frozenset({Check.VALUES, Check.SPECIAL, Check.LOOSE})
"""Checks that fail for one another: infinities in a part may be merely wrong numbers at the end."""


class Culprit(msgspec.Struct, frozen=True):
    """What fails by itself. `path` is that of the module in the model, empty for the model as a whole."""

    path: str
    kind: str  # the module's class
    op: str = ""  # the first op of it that fails alone; empty: none does
    message: str = ""  # how the op fails, or else the module

    def __str__(self) -> str:
        where = f"{self.path or 'the model'} ({self.kind})"
        what = f": {self.op}" if self.op else ": as a whole, each of its ops alone is right"
        return where + what + (f": {self.message}" if self.message else "")


def locate(
    backend: Backend,
    case: Case,
    sample: Sample,
    *,
    call: int = 0,
    check: Check | None = None,
    seconds: float | None = 120.0,
) -> Culprit | None:
    """The culprit in a sample whose `fn` is a module, looked for in a forked child for at most `seconds`.

    `call` is the number of the call that failed: 0, or that of a replay plus 1. `check` is what was found in
    it, if its results are wrong: a part must fail likewise. A part alone may return what the model does not: copies of
    what shares memory there, or statistics that only its caller drops. None where nothing fails so when it is run
    alone, or the time is up before the first module is found.
    """
    report = forked.run(lambda: map(msgspec.json.encode, _descent(backend, case, sample, call, check)), seconds)
    found = [msgspec.json.decode(line, type=Culprit) for line in report.lines]
    return found[-1] if found else None


def _descent(backend: Backend, case: Case, sample: Sample, number: int, check: Check | None) -> Iterator[Culprit]:
    """Ever smaller culprits."""
    torch.set_num_threads(1)  # a fork copies one thread of an OpenMP team
    recorded = _recorded(sample, case, number)
    modules = dict(sample.fn.named_modules()) if isinstance(sample.fn, nn.Module) else {}
    path: str | None = None
    failing: list[Call] = []
    candidates = [""]
    while candidates:
        runs = [(name, way) for name in candidates for way in recorded.get(name, ())]
        for part, way in runs:
            message = _failure(backend, case, modules[part], way, check)
            if message:
                path, failing = part, way
                yield Culprit(path, type(modules[path]).__name__, message=message)
                break
        else:
            break
        candidates = parts.below(path, recorded)
    if path is None:
        return
    for op, call in _ops(modules[path], failing[-1]):
        message = _failure(backend, case, op, [call], check)
        if message:
            yield Culprit(path, type(modules[path]).__name__, op.name(), message)
            return


def _recorded(sample: Sample, case: Case, number: int) -> dict[str, list[list[Call]]]:
    """Path -> inputs of a module in the first call of the model and, if another failed, in that one; as they run.

    A list for each way in which the module is called: to encode, say, and then to decode.
    """
    wanted = [(sample.args, sample.kwargs), *sample.replays]
    found: dict[str, list[list[Call]]] = {}
    for args, kwargs in [wanted[0], *([wanted[number]] if number else [])]:
        module: Any = on_device(sample.fn)
        prepared = prepare(args, kwargs, direction=Direction.FORWARD)
        with contextlib.suppress(Exception):
            run = functools.partial(invoke, prepared, driven(sample, module))
            for name, ways in parts.recorded_ways(module, run).items():
                found.setdefault(name, []).append(ways)
    calls = 1 + bool(number)
    return {name: [list(way) for way in zip(*each, strict=False)] for name, each in found.items() if len(each) == calls}


def _without_gradient(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        # Two runs have two caches, which are not equal to each other.
        return trees.map_leaves(fn(*args, **kwargs), lambda _, leaf: leaf if isinstance(leaf, parts.PLAIN) else None)


def _failure(backend: Backend, case: Case, fn: Any, calls: Sequence[Call], check: Check | None) -> str:
    """How a part fails on the backend, in a line; empty where it is right, or cannot be run alone on the CPU."""
    from conformance.backends.registry import capabilities

    (args, kwargs), *replays = calls
    sample = Sample(
        index=0,
        fn=fn,
        args=args,
        kwargs=kwargs,
        numerics=NumericalClass.COMPOSITE,
        digest="",
        source="",
        drive=_without_gradient,
        strides=False,
        replays=tuple(replays),
    )
    try:
        reference = make_reference(case, sample)
    except ReferenceUnavailable:
        return ""
    if reference.nondeterministic:
        return ""
    torch.compiler.reset()
    reset = getattr(backend, "reset", None)
    if reset is not None:
        reset()
    try:
        direction = direction_of(case, sample)
        result = run_sample(compiled(backend, case, sample), sample, direction=direction, device=backend.device)
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:300]
    verdict = judge(case, sample, reference, result, capabilities(backend))
    counts = [finding for finding in verdict.findings if _is_alike(finding.check, check)]
    return str(counts[0]).splitlines()[0][:300] if counts else ""


def _is_alike(found: Check, wanted: Check | None) -> bool:
    if wanted is None:
        return found is not Check.ALIAS
    return found is wanted or {found, wanted} <= OF_NUMBERS


def _ops(module: nn.Module, call: Call) -> Iterator[tuple[Any, Call]]:
    """The ops that the module dispatches to in eager mode, each distinct call once, in order."""
    args, kwargs = call
    prepared = prepare(args, kwargs, direction=Direction.FORWARD)
    seen = set()
    with torch.no_grad():
        recorded = observe.dispatched_calls(on_device(module), prepared.args, prepared.kwargs)
    for op, op_args, op_kwargs in recorded:
        key = op.name(), repr(trees.map_leaves((op_args, op_kwargs), _signature))
        if key not in seen:
            seen.add(key)
            yield op, (op_args, op_kwargs)


def _signature(_path: str, leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else leaf
