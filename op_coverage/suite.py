"""The op suite: every OpInfo of the installed torch as cases. An op added upstream adds cases without an edit here."""

from __future__ import annotations

import fnmatch
import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance import traced
from conformance.cases import Case, Direction, NumericalClass, Options, Sample, ShapeMode, Tier
from op_coverage.traced import lane as traced_lane

if TYPE_CHECKING:
    import torch

    from op_coverage import upstream
    from op_coverage.inputs import OpSample

DTYPES = ("float16", "float32", "bfloat16", "int64", "int32", "bool")
"""What is swept unless asked otherwise; the order in which the smoke tier looks for the first one that an op takes."""

_LOOK_AHEAD = 8
"""How many samples of an op are looked at for one that other sizes fit, where a tier runs only one."""

ON_CPU: Mapping[str, tuple[int, ...]] = {"tensor_split": (1,)}
"""Positions, among an op's tensors, of those that PyTorch demands on the CPU on every device."""

LANES = ("samples", "sizes", "views", "special", "scalars")
"""OpInfo's own samples, and the lanes of `lanes.py`, which only the ops that take any shape have. Beside these there is
`traced`, whose subjects are overloads and no OpInfos: see `traced.lane`."""

_BOTH_MODES = (ShapeMode.STATIC, ShapeMode.DYNAMIC)


@dataclass(frozen=True)
class TierPlan:
    """How much a tier runs. What is asked for by name (dtype, shape mode, direction, lane) replaces its choice."""

    shape_modes: tuple[ShapeMode, ...]
    first_dtype_only: bool = False
    backward: frozenset[str] | None = frozenset()  # dtypes with a backward; None: all that have one
    max_samples: int | None = None  # None: all. 1 is the first telling sample
    lanes: tuple[str, ...] = LANES[:1]


TIERS: Mapping[Tier, TierPlan] = {
    Tier.SMOKE: TierPlan((ShapeMode.STATIC,), first_dtype_only=True, max_samples=1),
    Tier.PR: TierPlan(_BOTH_MODES, backward=frozenset({"float32"}), max_samples=1),
    Tier.NIGHTLY: TierPlan(_BOTH_MODES, backward=None, lanes=LANES),
}


@dataclass(frozen=True)
class Support:
    """What an op takes on the CPU, as dtype names in the order of `DTYPES`, then complex64, then alphabetical."""

    forward: tuple[str, ...]
    backward: frozenset[str]
    unusable: str = ""  # why none of it can run here
    family: str | None = None  # of those that have the lanes beyond OpInfo's samples


class OpSuite:
    """All ops; see `conformance.cases.Suite`."""

    name = "ops"
    kind = "op"
    expectations_dir = Path(__file__).with_name("expectations")

    def cases(self, options: Options) -> Iterable[Case]:
        """All cases that `options` selects, in database order: op, lane, dtype, direction, shape mode. Then those of
        the lane `traced`.

        Raises `ValueError` for a dtype that torch does not have, and where traced calls are asked for and there are
        none.
        """
        found = [
            Case(self.kind, subject, dtype, mode, direction, lane)
            for subject, dtype, mode, direction, lane, reason in self._plan(options)
            if not reason
        ]
        return [*found, *(traced_lane.cases(options) if traced_lane.is_asked_for(options) else ())]

    def check(self, options: Options) -> None:
        """Raise `ValueError` where traced calls are asked for and there are none."""
        if traced_lane.is_asked_for(options):
            traced.locate(options.traced)

    def excluded(self, options: Options) -> Mapping[str, int]:
        """Reason -> number of cases that the selection names but no op takes."""
        return Counter(reason for *_, reason in self._plan(options) if reason)

    def samples(self, case: Case, options: Options) -> Iterator[Sample]:
        """The samples of a case, lazily and in index order.

        Raises `ValueError` for a subject that the installed torch does not have, or that does not have the lane.
        """
        if case.lane == traced_lane.LANE:
            yield from traced_lane.samples(case, options)
            return
        import torch

        from op_coverage import inputs, lanes, sources, upstream

        info = upstream.op_infos().get(case.subject)
        if info is None:
            raise ValueError(f"torch {torch.__version__} has no op {case.subject!r}")
        if case.lane not in LANES or (case.lane != "samples" and not _has_lane(case.lane, case.subject, case.dtype)):
            raise ValueError(f"{case.subject!r} has no lane {case.lane!r} in {case.dtype}; lanes: {', '.join(LANES)}")
        backward = case.direction is Direction.BACKWARD

        dtype = _dtype(case.dtype)
        if case.lane == "samples":
            made = inputs.generate(info, dtype, requires_grad=backward, seed=options.seed)
            limit = TIERS[options.tier].max_samples if options.max_samples is None else options.max_samples
        else:
            fn = sources.evaluate(sources.expression(info))
            made = lanes.generate(case.lane, info, fn, dtype, options.seed)
            limit = options.max_samples
        if limit == 1 and case.lane == "samples":
            yield from _first_telling(case, info, made)
        else:
            for sample in itertools.islice(made, limit):
                yield _judged(case, info, sample)

    def manifest(self, options: Options) -> Mapping[str, Any]:
        """What the report needs to know about the installed torch: its overloads, the ops without a class; and where
        traced calls come from."""
        from op_coverage import classes, upstream

        return {
            "op_infos": len(upstream.op_infos()),
            "unclassified": classes.unclassified(),
            "overloads": {"all": list(upstream.overload_names()), "core": sorted(upstream.core_overloads())},
            **({"traced": traced_lane.facts(options)} if traced_lane.is_asked_for(options) else {}),
        }

    def _plan(self, options: Options) -> Iterator[tuple[str, str, ShapeMode, Direction, str, str]]:
        """Subject, dtype, shape mode, direction, lane, and why it is left out (empty: it is not)."""
        for name in options.dtypes:
            _dtype(name)
        plan = TIERS[options.tier]
        lanes = [lane for lane in LANES if _matches(lane, options.lanes)] if options.lanes else plan.lanes
        for subject, support in supports().items():
            if options.subjects and not _matches(subject, options.subjects):
                continue
            dtypes = _dtypes(plan, options, support)
            for lane in lanes:
                modes = options.shape_modes or (plan.shape_modes if lane == "samples" else (ShapeMode.STATIC,))
                for dtype, direction, mode in itertools.product(dtypes, Direction, modes):
                    if lane == "samples" and _selects(plan, options, dtype, direction):
                        yield subject, dtype, mode, direction, lane, _why_not(support, dtype, direction)
                    elif lane != "samples" and _has_lane(lane, subject, dtype) and _lane_runs(options, direction):
                        yield subject, dtype, mode, direction, lane, ""


def _matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def _lane_runs(options: Options, direction: Direction) -> bool:
    return direction is Direction.FORWARD and (not options.directions or direction in options.directions)


def _has_lane(lane: str, subject: str, dtype: str) -> bool:
    """Whether the op has a lane beyond OpInfo's samples: it takes any shape; special values need a float, and a number
    needs another operand."""
    support = supports()[subject]
    if support.family is None or support.unusable or dtype not in support.forward:
        return False
    return {"special": _dtype(dtype).is_floating_point, "scalars": support.family == "binary"}.get(lane, True)


@functools.cache
def supports() -> Mapping[str, Support]:
    """What every op of the installed torch takes on the CPU, by subject."""
    from op_coverage import upstream

    found = {}
    for subject, info in upstream.op_infos().items():
        names = {str(dtype).removeprefix("torch.") for dtype in info.supported_dtypes("cpu")}
        backward = {str(dtype).removeprefix("torch.") for dtype in info.supported_backward_dtypes("cpu")}
        rest = sorted(names - set(DTYPES), key=lambda name: (name != "complex64", name))
        forward = (*(d for d in DTYPES if d in names), *rest)
        unusable = "op runs on CUDA only (jiterator)" if upstream.is_cuda_jiterator(info.op) else ""
        if not forward:
            unusable = "op takes no dtype on the CPU, where the reference runs"
        found[subject] = Support(forward, frozenset(backward), unusable, upstream.family(info))
    return found


def _dtypes(plan: TierPlan, options: Options, support: Support) -> tuple[str, ...]:
    if options.dtypes:
        return options.dtypes
    if plan.first_dtype_only:
        return support.forward[:1] or DTYPES[:1]
    return DTYPES


def _selects(plan: TierPlan, options: Options, dtype: str, direction: Direction) -> bool:
    if options.directions and direction not in options.directions:
        return False
    if direction is Direction.FORWARD:
        return True
    if plan.backward is None or dtype in plan.backward:
        return _is_floating(dtype)
    # Named together, or where the tier has no backward at all, they extend the tier.
    return direction in options.directions and bool(options.dtypes or not plan.backward) and _is_floating(dtype)


def _is_floating(dtype: str) -> bool:
    found = _dtype(dtype)
    return found.is_floating_point or found.is_complex


def _why_not(support: Support, dtype: str, direction: Direction) -> str:
    if support.unusable:
        return support.unusable
    if dtype not in support.forward:
        return "op does not take the dtype on the CPU, where the reference runs"
    if direction is Direction.BACKWARD and not support.backward:
        return "op has no backward"
    if direction is Direction.BACKWARD and dtype not in support.backward:
        return "the op's backward does not take the dtype on the CPU, where the reference runs"
    return ""


@functools.cache
def _dtype(name: str) -> torch.dtype:
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(
            f"{name!r} is not a dtype of torch {torch.__version__}; dtypes are named like float16 or int64"
        )
    return found


def _first_telling(case: Case, info: upstream.OpInfo, samples: Iterator[OpSample]) -> Iterator[Sample]:
    """The first sample with a tensor of two elements or more, which OpInfo seldom puts first; with symbolic sizes, one
    of the first that other sizes fit as well. Without any, the sample with most elements. Its own index in any case."""
    from op_coverage import inputs

    best: OpSample | None = None
    fixed: Sample | None = None
    for sample in samples:
        if inputs.most_elements(sample) < 2:
            best = max(best or sample, sample, key=inputs.most_elements)
            continue
        made = _judged(case, info, sample)
        fixed = fixed or made
        if case.shape_mode is ShapeMode.STATIC or made.replays:
            yield made
            return
        if sample.index >= _LOOK_AHEAD:
            break
    if fixed is not None:
        yield fixed
    elif best is not None:
        yield _judged(case, info, best)


def _judged(case: Case, info: upstream.OpInfo, sample: OpSample) -> Sample:
    from conformance import digests
    from op_coverage import classes, defaults, growth, properties, sources

    backward = case.direction is Direction.BACKWARD
    source = sources.backward_expression(info, sample.origin) if backward else sources.expression(info)
    notes = {}
    if source is None:  # the choice of outputs is a function of the database itself
        source = sources.expression(info)
        plain, choose = sources.evaluate(source), sample.origin.output_process_fn_grad
        notes["source"] = "of the forward; the choice of differentiable outputs is OpInfo's output_process_fn_grad"

        def fn(*args: Any, **kwargs: Any) -> Any:
            return choose(plain(*args, **kwargs))
    else:
        fn = sources.evaluate(source)
    # With symbolic sizes the same callable must serve other sizes.
    resizable = case.shape_mode is not ShapeMode.STATIC and case.subject not in growth.FIXED
    replays = growth.grown(fn, sample.args, sample.kwargs) if resizable else []
    kind = classes.lookup(case.subject).of_call(sample.args, sample.kwargs)
    numerics = kind.numerics_of(case.direction)
    checked = numerics is NumericalClass.PROPERTY and kind.check is not None
    return Sample(
        index=sample.index,
        fn=fn,
        args=sample.args,
        kwargs=sample.kwargs,
        numerics=numerics,
        digest=digests.of_calls(f"{case.subject}\0{source}", [(sample.args, sample.kwargs), *replays]),
        source=source,
        differentiable=sample.differentiable if backward else None,
        on_cpu=sample.on_cpu or ON_CPU.get(case.subject, ()),
        replays=tuple(replays),
        exact_fn=defaults.resolved(kind.resolve, fn, _dtype(case.dtype)) if kind.resolve else None,
        check=functools.partial(properties.CHECKS[str(kind.check)], kind.subject) if checked else None,
        ulps=kind.ulps_for(case.dtype) if numerics is NumericalClass.ELEMENTWISE else None,
        notes=notes,
    )
