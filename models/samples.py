"""Samples of the model sweep and of the decode sweep: which calls, driven how, with which budgets."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from conformance import digests, parts
from conformance.budgets import Budgets
from conformance.cases import Case, Direction, NotBuildable, NumericalClass, Sample, ShapeMode
from models import drives, generation, measures
from models.subjects import Subject

TRAINING_STEPS, RATE = 3, 1e-2

CACHES: Mapping[str, int] = {"dynamic-cache": 2, "static-cache": 1}
"""Lane of decoding -> recompiles that are in order. The prefill and the first step differ in shape; a cache that grows
differs once more at the second step, and is of symbolic size from then on."""

ENCODER = 1
"""Recompiles more with an encoder: it is called through the same compiled module as the decoder, before it."""


@dataclass(frozen=True)
class Plan:
    """One sample: the sizes of its calls, and how they are made."""

    index: int
    batch: int  # of the first call, whose length is the subject's
    replays: tuple[tuple[int, int], ...] = ()  # batch and length of the calls after it
    drive: Callable[..., Any] = drives.forward
    measure: Callable[[Any, Any, Any], Mapping[str, float]] | None = None
    fullgraph: bool = False
    budgets: Budgets = field(default_factory=lambda: Budgets(graph_breaks=0, recompiles=0))


def of_forward(case: Case, subject: Subject, seed: int) -> Iterator[Sample]:
    """#0, where shapes are symbolic with other lengths and batches; then #1 with a batch of one.

    The other lengths come with the smallest batch, which costs the references of large models least.

    Raises `ValueError` for a dtype that is not floating, and whatever making the model raises.
    """
    dtype = dtype_named(case.dtype)
    module = subject.build(dtype, seed, case.direction is Direction.BACKWARD)
    exact = subject.exact(module)

    def inputs(batch: int, length: int) -> dict[str, Any]:
        return subject.inputs(dtype, seed, batch, fitting(subject, length))

    for plan in _plans(case, subject):
        replays = [inputs(*sizes) for sizes in plan.replays]
        yield _sample(case, subject, module, exact, inputs(plan.batch, subject.sizes.length), replays, plan)


def _plans(case: Case, subject: Subject) -> Iterator[Plan]:
    forward = subject.drive or drives.forward
    batch, length = subject.sizes.batch, subject.sizes.length
    writes = subject.cache_argument is not None or subject.labels != ""
    measure = subject.measure or (measures.of_forward if writes else None)
    if case.direction is Direction.BACKWARD:
        train = functools.partial(drives.train, steps=TRAINING_STEPS, rate=RATE, labels=subject.labels)
        yield Plan(0, batch, drive=train)
    elif case.shape_mode is ShapeMode.STATIC:
        yield Plan(0, batch, drive=forward, measure=measure, fullgraph=case.lane == "fullgraph")
    else:
        marked = case.lane == "marked"
        drive = functools.partial(drives.marked_forward, dims=subject.dims, drive=forward) if marked else forward
        lengths = subject.sizes.lengths if subject.lengths else ()
        batches = subject.sizes.batches if subject.batched else ()
        # The largest first: Dynamo takes sizes that are equal in the first call for one symbol (duck sizing), and a
        # batch of two is also the size of a pair of coordinates, one of three that of a colour.
        several = sorted({batch, *batches} - {1}, reverse=True) or [batch]
        first, *others = several
        if lengths or others:
            smallest = others.pop() if lengths and others else first
            replays = [(smallest, other) for other in lengths] + [(other, length) for other in others]
            yield Plan(0, first, tuple(replays), drive=drive, measure=measure)
        if 1 in batches and not marked:  # a size of its own for torch.compile: it costs a graph, and cannot be marked
            yield Plan(
                1, first, ((1, length),), drive=forward, measure=measure, budgets=Budgets(graph_breaks=0, recompiles=1)
            )


def of_decoding(case: Case, subject: Subject, seed: int) -> Iterator[Sample]:
    """One: a prefill and then steps. Raises `NotBuildable` where the model has no such cache, and as `of_forward`."""
    if subject.cache_argument is None:
        raise NotBuildable("it does not decode token by token: its forward takes no cache")
    dtype, sizes = dtype_named(case.dtype), subject.sizes
    module = subject.build(dtype, seed, False)
    exact = subject.exact(module)
    writing = generation.asked(
        module, lambda length: subject.inputs(dtype, seed, sizes.batch, fitting(subject, length)), sizes
    )
    static = case.lane == "static-cache"
    drive = functools.partial(
        drives.decode,
        calls=writing.calls,
        prompt=writing.prompt,
        free=sizes.free,
        cache_argument=subject.cache_argument,
        make_cache=generation.static_cache(module, writing, sizes.free) if static else None,
    )
    with subject.around() if subject.around else contextlib.nullcontext():
        generation.require_reference(module, writing, drive)
    budgets = Budgets(graph_breaks=0, recompiles=CACHES[case.lane] + (ENCODER if writing.encodes else 0))
    plan = Plan(0, sizes.batch, drive=drive, measure=measures.of_decoding, budgets=budgets)
    sample = _sample(case, subject, module, exact, writing.inputs, [], plan)
    if writing.encodes:
        encoding = generation.encoding(exact) if exact is not None else None
        sample = replace(sample, fn=generation.encoding(module), exact_fn=encoding)
    yield sample


def of_block(case: Case, subject: Subject, path: str, seed: int) -> Sample:
    """The part of a model at `path`, fed what it gets in a forward of the model."""
    dtype = dtype_named(case.dtype)
    model = subject.build(dtype, seed, False)
    inputs = subject.inputs(dtype, seed, subject.sizes.batch, fitting(subject, subject.sizes.length))
    with torch.no_grad():
        args, kwargs = parts.recorded(model, lambda: model(**inputs))[path]
    module = model.get_submodule(path)
    state = ([*module.parameters(), *module.buffers()], kwargs)
    return Sample(
        index=0,
        fn=module,
        args=args,
        kwargs=kwargs,
        numerics=NumericalClass.COMPOSITE,
        digest=digests.of_calls(case.subject, [state, (args, {})]),
        source=f"{subject.name}: {path}",
        drive=drives.part,
        strides=False,
        budgets=Budgets(graph_breaks=0, recompiles=0),
        exact_fn=subject.exact(module),
        notes={"block": f"{path} of {subject.name}"},
    )


def _sample(
    case: Case,
    subject: Subject,
    module: nn.Module,
    exact: nn.Module | None,
    inputs: dict[str, Any],
    replays: list[dict[str, Any]],
    plan: Plan,
) -> Sample:
    state = ([*module.parameters(), *module.buffers()], inputs)
    statements, expression = subject.script(dtype_named(case.dtype)) if subject.script else ("", "")
    return Sample(
        index=plan.index,
        fn=module,
        args=(),
        kwargs=inputs,
        numerics=NumericalClass.COMPOSITE,
        digest=digests.of_calls(case.subject, [state, *(((), each) for each in replays)]),
        source=expression or type(module).__name__,
        setup=f"{statements}\n{drives.PLAIN}" if statements else "",
        drive_source=drives.SOURCES.get(plan.drive, "") if expression else "",
        drive=plan.drive if subject.around is None else drives.within(subject.around, plan.drive),
        strides=False,  # nobody reads those of a cache, and the op sweep judges what makes them
        fullgraph=plan.fullgraph,
        budgets=plan.budgets,
        exact_fn=exact,
        tolerance=subject.tolerance,
        measure=plan.measure,
        replays=tuple(((), each) for each in replays),
    )


def fitting(subject: Subject, length: int) -> int:
    """The nearest length from `length` on that the model takes."""
    return -(-length // subject.length_multiple) * subject.length_multiple


def dtype_named(name: str) -> torch.dtype:
    """The floating-point dtype of torch. Raises `ValueError` for any other name."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"models are swept in floating-point dtypes, e.g. float32 or float16, not {name!r}")
    return found
