"""The lane `traced`: calls that models make after decomposition, each a sample that knows its models."""

from __future__ import annotations

import fnmatch
import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance import signatures, traced
from conformance.cases import Case, Direction, NotBuildable, NumericalClass, Options, Sample, ShapeMode, Tier
from conformance.traced import Traced

if TYPE_CHECKING:
    from op_coverage.traced.calls import Call

LANE = "traced"

MOST_USED: Mapping[Tier, int | None] = {Tier.SMOKE: 1, Tier.PR: 8, Tier.NIGHTLY: None}
"""How many calls of an op, dtype and shape mode a tier runs: those that most models make. None: all."""

OTHER_SIZES = ((2, 2), (5, 3))
"""For each replay what is added to all symbolic sizes, or where that does not fit the call, by what they are
multiplied: sizes that no block divides find more, multiples keep what must divide."""

MODES = (ShapeMode.STATIC, ShapeMode.DYNAMIC)
MOST_ELEMENTS = 2**22
"""Of a tensor. Calls of tiny models are far below it; a call beyond it is left to the sweep of its model."""

Key = tuple[str, str, bool]
"""Op, dtype, whether sizes are symbolic."""


def is_asked_for(options: Options) -> bool:
    """Whether `--lane traced` is given, or a glob that matches it where there is a file to read. It is in no tier."""
    if not any(fnmatch.fnmatchcase(LANE, glob) for glob in options.lanes):
        return False
    if LANE in options.lanes or options.traced:
        return True
    try:
        traced.locate(options.traced)
    except traced.TracedError:
        return False
    return True


def cases(options: Options) -> list[Case]:
    """Calls with constant sizes are static cases, those with symbolic ones dynamic; by op and dtype.

    Raises `TracedError` where there is no file of traced calls.
    """
    found = []
    if options.directions and Direction.FORWARD not in options.directions:
        return []
    for op, dtype, symbolic in _index(traced.locate(options.traced)):
        mode = MODES[symbolic]
        if (
            (not options.subjects or any(fnmatch.fnmatchcase(op, glob) for glob in options.subjects))
            and (not options.dtypes or dtype in options.dtypes)
            and (not options.shape_modes or mode in options.shape_modes)
        ):
            found.append(Case("op", op, dtype, mode, Direction.FORWARD, LANE))
    return found


def facts(options: Options) -> dict[str, Any]:
    """Where the calls come from, how many there are, and which operators are judged composite for want of an OpInfo."""
    from op_coverage.traced import like

    path = traced.locate(options.traced)
    calls = [call for group in _index(path).values() for call in group]
    ops = sorted({call.op for call in calls})
    return {
        "file": str(path),
        "calls": len(calls),
        "models": len({model for call in calls for model in call.models}),
        "unclassified": [op for op in ops if like.subject(op) is None],
    }


def samples(case: Case, options: Options) -> Iterator[Sample]:
    """The calls of a case by number, those that eager CPU refuses left out.

    Raises `ValueError` where none has been traced, and `NotBuildable` where the op is not there.
    """
    path = traced.locate(options.traced)
    key = (case.subject, case.dtype, case.shape_mode is not ShapeMode.STATIC)
    found = _index(path).get(key, ())
    if not found or case.direction is not Direction.FORWARD:
        raise ValueError(f"{path} has no call of {case.subject!r} in {case.dtype}, {case.shape_mode}, forward")
    _needs_op(case.subject)
    limit = MOST_USED[options.tier] if options.max_samples is None else options.max_samples
    for each in sorted(_most_used(found, limit), key=lambda call: call.number):
        sample = _sample(case, each, options.seed)
        if sample is not None:
            yield sample


def _needs_op(op: str) -> None:
    from op_coverage import upstream

    try:
        upstream.argument_names(op)
    except ValueError as error:  # of a newer torch, or registered by a package that only its models import
        raise NotBuildable(str(error)) from None


def _most_used(calls: Sequence[Traced], limit: int | None) -> Sequence[Traced]:
    return sorted(calls, key=lambda call: (-len(call.users), call.number))[:limit]


def _index(path: Path) -> Mapping[Key, Sequence[Traced]]:
    return _read(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _read(path: Path, changed: int) -> Mapping[Key, Sequence[Traced]]:
    found: dict[Key, list[Traced]] = defaultdict(list)
    for call in traced.read(path):
        found[call.op, call.dtype, signatures.decode(call.signature).is_symbolic].append(call)
    return found


# --- samples ----------------------------------------------------------------------------------------------------------


def _sample(case: Case, each: Traced, seed: int) -> Sample | None:
    from conformance import digests
    from op_coverage import properties, sources
    from op_coverage.traced import calls, like

    call = calls.of(signatures.decode(each.signature))
    fn = sources.evaluate(call.source)
    made = _accepted(call, call.signature.symbols, seed)
    if made is None:
        return None
    replays = _replays(call, seed)
    kind = like.op_class(case.subject).of_call(*call.rebuilt(made))
    numerics = kind.numerics_of(case.direction)
    check = None
    if numerics is NumericalClass.PROPERTY and kind.check is not None:
        check = functools.partial(_checked, properties.CHECKS[kind.check], kind.subject, call)
    args = tuple(made)
    return Sample(
        index=each.number,
        fn=fn,
        args=args,
        kwargs={},
        numerics=numerics,
        digest=digests.of_calls(f"{case.subject}\0{call.source}", [(args, {}), *replays]),
        source=call.source,
        replays=tuple(replays),
        check=check,
        ulps=kind.ulps_for(case.dtype) if numerics is NumericalClass.ELEMENTWISE else None,
        notes={"models": each.models, "signature": signatures.shown(call.signature)},
    )


def _accepted(call: Call, symbols: Mapping[str, int], seed: int) -> list[Any] | None:
    """Values of the parameters at these sizes; None where they do not fit the call, where eager CPU refuses it, and
    where it has no result to compare, as an assertion has none."""
    from op_coverage import inputs, sources
    from op_coverage.traced import calls, values

    try:
        shapes = [calls.shape(p.content, symbols) for p in call.parameters if p.kind == "tensor"]
        if any(shape.memory > MOST_ELEMENTS for shape in shapes):
            return None
        with inputs.seeded(call.source, str(dict(symbols)), str(seed)):
            made = values.make(call, symbols)
    except (signatures.SignatureError, RuntimeError, IndexError):
        return None
    result = inputs.result(sources.evaluate(call.source), (tuple(made), {}))
    if result in (None, (None,)) or any(t.numel() > MOST_ELEMENTS for t in inputs.tensors(result, {})):
        return None
    return made


def _replays(call: Call, seed: int) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The call at two other choices of its symbolic sizes, as far as there are some that fit it."""
    symbols = call.signature.symbols
    found = []
    for step, factor in OTHER_SIZES if symbols else ():
        for other in (
            {name: value + step for name, value in symbols.items()},
            {name: value * factor for name, value in symbols.items()},
        ):
            made = _accepted(call, other, seed)
            if made is not None:
                found.append((tuple(made), dict[str, Any]()))
                break
    return found


def _checked(check: Any, subject: str, call: Call, given: Any, output: Any, reference: Any) -> str | None:
    """A property check, shown the arguments of the op instead of the parameters of our expression."""
    return check(subject, call.rebuilt(given[0]), output, reference)
