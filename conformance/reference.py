"""What a sample should give: the CPU's answer in the case's own dtype (`same`) and in float64 (`exact`).

Both are eager. Everything beyond these two runs (sensitivity, the size of the terms of a sum, the scale of a typical
answer) is computed when a judge asks for it, because most samples are judged without.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from conformance import trees
from conformance.callables import borrowed, direction_of, driven
from conformance.calls import SEED, CallResult, Leaf, invoke, prepare, to_host
from conformance.cases import Case, NumericalClass, Sample
from conformance.isolation import memory
from conformance.judgement.stochastic import StochasticArithmetic, root_mean_squares, stochastic_arithmetic
from conformance.numerics import FORMATS, NumberFormat, format_of, representable
from conformance.widening import widened_dtype, widening

PERTURBATIONS = 4  # random directions; a fifth run scales all inputs up together
SLOW = 0.02  # seconds of one float64 run from which on one random direction must do
DRAWS, FEWER_DRAWS = 16, 8  # runs with random roundings, and as many with finer ones: of a quick sample, a slow one
DEVIATIONS = {16: 8.0, 8: 12.0}
"""By how many draws a standard deviation is known, the multiple of it that a further draw exceeds less than once in
400 000 times: quantiles of Student's t of as many degrees of freedom (the mean is known to be 0)."""
ONCE_IN, RIGHT_SAMPLES = 400_000, 100
"""How seldom one element exceeds it, and of how many right samples one may, however many elements it has."""
CHOICES, APART = 16, 2.0**-36  # runs with equal inputs moved apart, and by how much of their RMS
SAME_FUNCTION = 1e-3  # of its rounding errors: how far a result may be off if computed in steps that do not round


Around = Callable[[], AbstractContextManager[Any]]
"""Makes what is entered around a run."""


def deviations(draws: int, elements: int) -> float:
    """The multiple of a standard deviation known by so many draws that hardly any of so many elements exceeds.

    That of DEVIATIONS, and more for a result of more than a few thousand elements: beyond it the tail of Student's t
    falls with the power `draws` of the multiple.
    """
    return DEVIATIONS[draws] * max(1.0, RIGHT_SAMPLES * elements / ONCE_IN) ** (1 / draws)


class ReferenceUnavailable(Exception):
    """The sample has no reference. `cause` is what the eager CPU run raised, or None where another reason is given."""

    def __init__(self, reason: str, cause: BaseException | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cause = cause


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Integers promote to, and factories make, the default dtype: in the float64 run it has to be float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def widened(x: Any, wide: torch.dtype, narrow: torch.dtype) -> Any:
    """An input for a run in `wide`: floating and complex tensors change, and dtypes at least as fine as `narrow`."""
    if isinstance(x, Tensor):
        if x.is_floating_point():
            return x.to(wide)
        return x.to(wide.to_complex()) if x.is_complex() else x
    return widened_dtype(x, wide, narrow) if isinstance(x, torch.dtype) else x


def _by_component(fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`fn` on the real and imaginary parts of a complex tensor, or on a real one."""
    return torch.view_as_complex(fn(torch.view_as_real(x.resolve_conj()))) if x.is_complex() else fn(x)


def _is_inexact(x: Any) -> bool:
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def tensors_of(result: CallResult) -> list[Leaf]:
    """Outputs, inputs after the call and gradients: everything whose values are judged, in a fixed order."""
    return [*result.outputs, *result.inputs, *result.gradients]


def bits_equal(a: Any, b: Any) -> bool:
    """Same values, with NaN equal to NaN and -0 different from +0; also for plain Python values."""
    if isinstance(a, Tensor) != isinstance(b, Tensor):
        return False
    if not isinstance(a, Tensor):
        return type(a) is type(b) and (a == b or (a != a and b != b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not _is_inexact(a):
        return torch.equal(a, b)
    if a.is_complex():
        return bits_equal(torch.view_as_real(a), torch.view_as_real(b))
    if a.element_size() == 1:  # 8-bit floats have no comparison kernels
        a, b = a.float(), b.float()
    if torch.equal(a, b):
        return torch.equal(a.signbit(), b.signbit())
    return bool((((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())).all())


def results_equal(a: CallResult, b: CallResult) -> bool:
    """Whether two runs gave the same bits everywhere."""
    left, right = tensors_of(a), tensors_of(b)
    return len(left) == len(right) and all(bits_equal(x.value, y.value) for x, y in zip(left, right, strict=True))


@dataclass
class Reference:
    """The reference of one sample (of its first call; `replays` has those of the others)."""

    case: Case
    sample: Sample
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    same: CallResult
    nondeterministic: bool = False
    other: CallResult | None = None  # the second, different run of a nondeterministic sample
    notes: list[str] = field(default_factory=list)
    replays: tuple[Reference, ...] = ()
    wide: torch.dtype = torch.float64  # in which `exact` runs; float32 where the op refuses float64
    around: Around | None = None  # entered around every run
    _seconds: float = 0.0  # of the exact run

    @property
    def cotangents(self) -> list[tuple[Tensor, ...]]:
        """For `calls.run_sample`: those of the first call and of each replay."""
        return [self.same.cotangents, *(r.same.cotangents for r in self.replays)]

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.case.dtype)

    def _run(
        self,
        convert: Callable[[Any], Any],
        convert_cotangent: Callable[[Tensor], Tensor],
        around: Around | None = None,
    ) -> CallResult:
        with (
            borrowed(self.sample.exact_fn or self.sample.fn, convert=convert) as fn,
            _default_dtype(self.wide),
            self._inside(),
        ):
            prepared = prepare(
                self.args,
                self.kwargs,
                direction=direction_of(self.case, self.sample),
                differentiable=self.sample.differentiable,
                convert=convert,
            )
            cotangents = [convert_cotangent(c) for c in self.same.cotangents]
            copied = isinstance(fn, torch.nn.Module)  # a function may have memory of its own, and is called again
            call = driven(self.sample, fn)
            with self.around() if self.around is not None else nullcontext():
                return invoke(prepared, call, around=around, cotangents=cotangents, copy=not copied)

    def _inside(self) -> AbstractContextManager[Any]:
        """A module may name a dtype in its code, where an op is given one."""
        module = isinstance(self.sample.fn, torch.nn.Module)
        return widening(self.wide, self.dtype) if module else nullcontext()

    def rerun(self, around: Around) -> CallResult:
        """The call once more on the CPU in the case's own dtype, within `around()`. Raises whatever it raises."""
        return _eager(self.case, self.sample, self.args, self.kwargs, around)

    def within(self, key: Any, make: Callable[[], Around]) -> Reference | None:
        """The reference of the same calls, every run of a call within what `make()` returned for that call, entered
        first for the run in the case's own dtype. Made once for each `key`. None where one of them fails so."""
        return self._once(("within", key), lambda: self._within(key, make))

    def with_replays(self, replays: Sequence[Reference]) -> Reference:
        """This one with other replays. It shares with this one what either computes when asked."""
        made = copy.copy(self)
        made.__dict__["_memo"] = self._memo
        made.replays = tuple(replays)
        return made

    def _within(self, key: Any, make: Callable[[], Around]) -> Reference | None:
        replays = [each.within(key, make) for each in self.replays]
        around = make()
        try:
            same = self.rerun(around)
        except Exception as error:
            if _is_exhausted(error):
                raise
            return None
        made = Reference(self.case, self.sample, self.args, self.kwargs, same, around=around)
        made.replays = tuple(each for each in replays if each is not None)
        return made if len(made.replays) == len(replays) else None

    def _widen(self, x: Any) -> Any:
        return widened(x, self.wide, self.dtype)

    @cached_property
    def exact(self) -> CallResult | None:
        """The float64 run; None where there is no such thing (a note says why), and `same` is all there is."""
        if self.sample.numerics is NumericalClass.PROPERTY or self.nondeterministic:
            return None
        if not any(_is_inexact(leaf.value) for leaf in tensors_of(self.same)):
            return self.same  # integers and bools are exact as they are
        if self.case.dtype in ("float64", "complex128"):
            self.notes.append("no format finer than float64 to compute an exact result in")
            return None
        complaint = ""
        short = self.dtype.is_floating_point and self.dtype.itemsize <= 2
        finer = [torch.float64, torch.float32] if short else [torch.float64]
        for wide in finer:
            self.wide = wide
            try:
                started = time.perf_counter()
                made = self._run(self._widen, self._widen)
                self._seconds = time.perf_counter() - started
            except Exception as error:
                if _is_exhausted(error):
                    raise
                complaint = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
                continue
            if complaint:
                self.notes.append(f"exact result computed in {str(wide)[6:]}, float64 refused: {complaint}")
            if self._comparable(made):
                return made
            complaint = "its results have other shapes"
        self.wide = torch.float64
        self.notes.append(f"no float64 reference, judged against the CPU's own dtype: {complaint}")
        return None

    def _comparable(self, made: CallResult) -> bool:
        ours, theirs = tensors_of(self.same), tensors_of(made)
        if len(ours) != len(theirs):
            return False
        for a, b in zip(ours, theirs, strict=True):
            if isinstance(a.value, Tensor) != isinstance(b.value, Tensor):
                return False
            if isinstance(a.value, Tensor) and a.value.shape != b.value.shape:
                return False
        return True

    def _values(
        self,
        convert: Callable[[Any], Any],
        on_cotangent: Callable[[Tensor], Tensor],
        around: Around | None = None,
    ) -> list[Any] | None:
        try:
            made = self._run(convert, on_cotangent, around)
        except Exception as error:  # the op may refuse the changed inputs (not positive definite, say): no evidence
            if _is_exhausted(error):
                raise
            return None
        return [leaf.value for leaf in tensors_of(made)] if self._comparable(made) else None

    def on_inputs(self, fmt: NumberFormat, flush_subnormals: bool) -> list[Any] | None:
        """Values of the float64 run on inputs first rounded to `fmt`, as a device that stores them so sees them."""
        return self._once(("inputs", fmt.name, flush_subnormals), lambda: self._rounded(fmt, flush_subnormals))

    def as_held(self, fmt: NumberFormat, flush_subnormals: bool) -> Reference | None:
        """The reference of the same call on those inputs, in the case's own dtype. None where the op refuses them."""
        return self._once(("held", fmt.name, flush_subnormals), lambda: self._on_held(fmt, flush_subnormals))

    def _on_held(self, fmt: NumberFormat, flush: bool) -> Reference | None:
        def held(_path: str, x: Any) -> Any:
            if not _is_inexact(x):
                return x
            own = format_of(x.dtype)
            rounded = partial(representable, fmt=fmt, own=own, flush_subnormals=flush)
            return _by_component(lambda r: rounded(r.double()).to(r.dtype), x.detach()).requires_grad_(x.requires_grad)

        args, kwargs = trees.map_leaves((self.args, self.kwargs), held)
        try:
            return replace(self, args=args, kwargs=kwargs, same=_eager(self.case, self.sample, args, kwargs))
        except Exception as error:
            if _is_exhausted(error):
                raise
            return None

    def _rounded(self, fmt: NumberFormat, flush: bool) -> list[Any] | None:
        def convert(x: Any) -> Any:
            x = self._widen(x)
            if not _is_inexact(x):
                return x
            held = partial(representable, fmt=fmt, own=format_of(self.dtype), flush_subnormals=flush)
            return _by_component(lambda r: held(r.double()).to(self.wide), x)

        return self._values(convert, convert)

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    @cached_property
    def _memo(self) -> dict[Any, Any]:
        return {}

    @property
    def slow(self) -> bool:
        """Whether a float64 run takes so long that evidence is gathered with few of them first."""
        return self.exact is not None and self._seconds >= SLOW

    def sensitivity(self, fmt: NumberFormat, *, thorough: bool = False) -> list[Tensor | None]:
        """For each of `tensors_of`, how far it moves when all inputs move by about one unit in the last place of `fmt`.

        The largest of a few seeded random moves of half to one unit with random signs (whole units cancel too often),
        and of one that scales all inputs by 1 + eps. A result that moves nearly as far for a sixteenth of a unit jumps
        (an input is a label, or lies on a threshold): that is no rounding error, and counts as 0, as does a change from
        finite to infinite or NaN. By component for complex results (last dimension 2). None for results that are not
        floating. Of a slow reference one random move must do, unless `thorough`.
        """
        thorough = thorough or not self.slow
        return self._once(("sensitivity", fmt.name, thorough), lambda: self._sensitivity(fmt, thorough))

    def _sensitivity(self, fmt: NumberFormat, thorough: bool) -> list[Tensor | None]:
        leaves = tensors_of(self.exact or self.same)
        found = self._moved(leaves, fmt, 1.0, SEED)
        if all(moved is None or not bool(moved.any()) for moved in found):
            return found
        slightly = self._moved(leaves, fmt, 1 / 16, SEED)
        jumps = [None if moved is None else little > moved / 4 for moved, little in _each(found, slightly)]
        seeds = [*range(SEED + 1, SEED + PERTURBATIONS), None] if thorough else []
        for seed in seeds:
            further = self._moved(leaves, fmt, 1.0, seed)
            found = [None if moved is None else torch.maximum(moved, other) for moved, other in _each(found, further)]
        return [None if moved is None else torch.where(jump, 0.0, moved) for jump, moved in _each(jumps, found)]

    def roundings(self, fmt: NumberFormat, accumulation: NumberFormat, *, in_steps: bool) -> list[Tensor | None]:
        """For each of `tensors_of`, what its error hardly ever exceeds where every operation rounds to `fmt`.

        Unlike `sensitivity` it sees what is lost on the way to a result that does not depend on its inputs (a gradient
        that is zero in theory), and costs far more; see `stochastic`. `in_steps`: also within kernels that PyTorch can
        take apart. A result that is nearly as far off where everything rounds to four bits more jumps, which counts as
        0 as it does in `sensitivity`. None for results that are not floating, for those whose steps give another result
        than the kernel even without rounding, and for all where the op refuses.
        """
        key = ("roundings", fmt.name, accumulation.name, in_steps)
        return self._once(key, lambda: self._roundings(fmt, accumulation, in_steps))

    def deviations(self) -> float:
        """How many standard deviations of a rounding error `roundings` gives."""
        leaves = tensors_of(self.exact or self.same)
        return deviations(self._draws, sum(leaf.value.numel() for leaf in leaves if _is_inexact(leaf.value)))

    @property
    def _draws(self) -> int:
        return DRAWS if self._seconds < SLOW else FEWER_DRAWS

    def _roundings(self, fmt: NumberFormat, accumulation: NumberFormat, in_steps: bool) -> list[Tensor | None]:
        leaves = tensors_of(self.exact or self.same)

        def errors(finer: int, seed: int) -> list[Tensor | None] | None:
            precisions = fmt.precision + finer, accumulation.precision + finer
            mode = StochasticArithmetic(*precisions, seed, self.wide, in_steps=in_steps)

            def convert(x: Any) -> Any:
                x = self._widen(x)
                if not _is_inexact(x):
                    return x
                x = x.clone()
                mode.round_(x)  # nothing happens unless the device cannot hold the input
                return x

            values = self._values(convert, convert, lambda: stochastic_arithmetic(mode))
            return self._distances(leaves, values) if values is not None else None

        nothing: list[Tensor | None] = [None] * len(leaves)
        unrounded = errors(FORMATS["fp64"].precision, SEED) if self.exact is not None else None
        if unrounded is None:
            return nothing
        by_steps = [0.0 if error is None else rms(error) or 0.0 for error in unrounded]
        del unrounded
        seeds = range(SEED + 1, SEED + 1 + self._draws)
        coarse = root_mean_squares(errors(0, seed) for seed in seeds)
        fine = root_mean_squares(errors(4, seed) for seed in seeds) if coarse is not None else None
        if coarse is None or fine is None:
            return nothing
        found = list(nothing)
        factor = self.deviations()
        for i, (little, deviation) in enumerate(_each(fine, coarse)):
            if deviation is None or by_steps[i] > SAME_FUNCTION * (rms(deviation) or 0.0):
                continue
            # What is next to a value of the format hardly ever rounds away from it: below a unit nothing jumps.
            jumps = (little > deviation / 4) & (little > fmt.eps * _real(leaves[i].value).double().abs())
            found[i] = torch.where(jumps, 0.0, factor * deviation)
        return found

    def _moved(self, leaves: list[Leaf], fmt: NumberFormat, size: float, seed: int | None) -> list[Tensor | None]:
        """Distance of all results from `leaves` after one move of the inputs, `size` units wide.

        Random by element from `seed`; None: all inputs scaled by 1 + eps.
        """
        generator = torch.Generator().manual_seed(seed or 0)

        def move(x: Tensor) -> Tensor:
            if seed is None:
                return x.double() * (1 + fmt.eps)
            # A unit is between |x| eps / 2 and |x| eps. One draw is both the sign and the size of a step.
            step = torch.rand(x.shape, dtype=torch.float64, generator=generator).mul_(2).sub_(1)
            step += step.sign()
            return x + x * step.mul_(0.5 * size * fmt.eps)

        def convert(x: Any) -> Any:
            x = self._widen(x)
            return _by_component(lambda r: move(r).to(self.wide), x) if _is_inexact(x) else x

        return self._distances(leaves, self._values(convert, convert))

    def _distances(self, leaves: list[Leaf], values: list[Any] | None) -> list[Tensor | None]:
        """By element and component; 0 where there is no value, or one of the two is infinite or NaN. Uses `values` up.

        In float32, unless that is coarser than the result: there may be many, and none is larger than the results.
        """
        others = [leaf.value for leaf in leaves] if values is None else values
        judged = [leaf.value for leaf in tensors_of(self.same)]
        found: list[Tensor | None] = []
        for i, (leaf, value) in enumerate(_each(leaves, others)):
            if not _is_inexact(leaf.value):
                found.append(None)
                continue
            distance = (_real(value) - _real(leaf.value)).abs_().nan_to_num_(0.0, 0.0, 0.0)
            if _real(judged[i]).itemsize <= torch.float32.itemsize:
                distance = distance.clamp_(max=torch.finfo(torch.float32).max).float()
            found.append(distance)
        return found

    def magnitude(self) -> list[Tensor | None] | None:
        """For each of `tensors_of`, the sum of the absolute values of its terms: the float64 run on |inputs|.

        That is what it is for results that are sums of products of inputs with fixed signs (matrix products,
        convolutions, sums, means, cumulative sums and their gradients). None where the op refuses, or where the answer
        exceeds it somewhere, which shows that this op is no such sum. By component for complex results.
        """
        return self._once("magnitude", self._magnitude)

    def _magnitude(self) -> list[Tensor | None] | None:
        values = self._values(lambda x: _absolute(self._widen(x)), lambda c: _absolute(self._widen(c)))
        if values is None:
            return None
        made: list[Tensor | None] = []
        for i, (leaf, value) in enumerate(zip(tensors_of(self.exact or self.same), values, strict=True)):
            if not _is_inexact(value):
                made.append(None)
                continue
            # Of complex inputs the sum of |a||b| is real; both components of the result have it as their bound.
            size = torch.stack([value.abs()] * 2, -1) if value.is_complex() else value.abs()
            answer = _real(leaf.value).abs()
            judged = i not in range(len(self.same.outputs), len(self.same.outputs) + len(self.same.inputs))
            if judged and bool((answer > size * (1 + 1e-9) + 1e-300).any()):
                return None
            made.append(size)
        return made

    def terms(self) -> int:
        """Length of the longest sum: `sample.contraction_length` where given, else measured by running on ones."""
        return self._once("terms", self._terms)

    def _terms(self) -> int:
        if self.sample.contraction_length is not None:
            return max(1, int(self.sample.contraction_length(self.args, self.kwargs)))

        def ones(x: Any) -> Any:
            x = self._widen(x)
            return torch.ones_like(x) if _is_inexact(x) else _absolute(x)

        values = self._values(ones, ones) or []
        counted = [float(v.abs().nan_to_num(0.0, 0.0, 0.0).max()) for v in values if _is_inexact(v) and v.numel()]
        inputs = [leaf.value.numel() for leaf in self.same.inputs if isinstance(leaf.value, Tensor)]
        outputs = [leaf.value.numel() for leaf in self.same.outputs if isinstance(leaf.value, Tensor)]
        shrinks = max(inputs, default=1) / max(1, max(outputs, default=1))  # a mean of ones is one: count its inputs
        return max(1, math.ceil(max([*counted, shrinks])))

    def apart(self) -> list[list[Any]]:
        """Values of float64 runs on inputs whose equal elements are moved apart, by far less than the case's dtype can
        tell: the first up, the last up, and in random orders. Without those that the op refuses. See `ties`."""
        return self._once("apart", self._apart)

    def _apart(self) -> list[list[Any]]:
        made = []
        for choice in range(CHOICES):
            generator = torch.Generator().manual_seed(SEED + choice)

            def convert(x: Any, choice: int = choice, generator: torch.Generator = generator) -> Any:
                x = self._widen(x)
                if not isinstance(x, Tensor) or not x.is_floating_point() or self.wide is not torch.float64:
                    return x
                by = torch.rand(x.shape, dtype=torch.float64, generator=generator)
                if choice < 2:
                    by = torch.linspace(1 - choice, choice, x.numel(), dtype=torch.float64).reshape(x.shape)
                return x + APART * (rms(x) or 1.0) * by

            values = self._values(convert, self._widen)
            if values is not None:
                made.append(values)
        return made

    def data_scale(self) -> float:
        """The largest RMS among inputs, results and cotangents, that is, the size of the numbers of this sample."""
        found = [leaf.value for leaf in tensors_of(self.same)] + list(self.same.cotangents)
        sizes = [rms(_real(t).double()) or 0.0 for t in found if isinstance(t, Tensor)]
        return max(sizes, default=0.0)

    def typical(self) -> list[float | None]:
        """For each of `tensors_of`, the RMS it would have for other inputs of the same size.

        It tells a result that is small because terms cancel (a gradient that is zero in theory) from one that is small
        by nature: an error that is tiny beside the typical size is no wrong answer, however large it is beside zero.
        """
        return self._once("typical", self._typical)

    def _typical(self) -> list[float | None]:
        generator = torch.Generator().manual_seed(SEED)

        def other(x: Tensor) -> Tensor:
            return x * (0.5 + torch.rand(x.shape, dtype=torch.float64, generator=generator)).to(x.dtype)

        def convert(x: Any) -> Any:
            x = self._widen(x)
            return _by_component(other, x) if _is_inexact(x) else x

        values = self._values(convert, convert)
        if values is None:
            return [None] * len(tensors_of(self.same))
        return [rms(_real(v)) if _is_inexact(v) else None for v in values]


def _each(kept: Sequence[Any], used_up: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs of the two. What is used up is dropped one by one: both may be as large as everything that is judged."""
    for i, left in enumerate(kept):
        right, used_up[i] = used_up[i], None
        yield left, right


def _is_exhausted(error: Exception) -> bool:
    """Whether a run ended for want of memory: without its evidence a right result might be called wrong."""
    return memory.is_exhausted(f"{type(error).__name__}: {error}")


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def rms(x: Tensor) -> float | None:
    """Root mean square of the finite elements of a real tensor; None if it has none. Immune to over- and underflow."""
    x = x[x.isfinite()] if not bool(x.isfinite().all()) else x
    if x.numel() == 0:
        return None
    top = float(x.abs().max())
    return top * math.sqrt(float((x.double() / top).square().mean())) if top > 0 else 0.0


def _absolute(x: Any) -> Any:
    if _is_inexact(x):
        return x.abs().to(x.dtype)
    return abs(x) if isinstance(x, (float, complex)) else x


def _eager(
    case: Case, sample: Sample, args: Sequence[Any], kwargs: Any, around: Around | None = None, *, seed: int = SEED
) -> CallResult:
    prepared = prepare(args, kwargs, direction=direction_of(case, sample), differentiable=sample.differentiable)
    with borrowed(sample.fn) as fn:
        return invoke(prepared, driven(sample, fn), around=around, seed=seed)


def _same(case: Case, sample: Sample, args: Sequence[Any], kwargs: Any) -> Reference:
    direction = direction_of(case, sample)
    try:
        first = _eager(case, sample, args, kwargs)
    except Exception as error:
        text = (str(error).splitlines() or [""])[0][:200]
        raise ReferenceUnavailable(f"eager CPU raised {type(error).__name__}: {text}", error) from error
    if direction == "bwd" and not any(isinstance(g.value, Tensor) for g in first.gradients):
        raise ReferenceUnavailable("nothing to differentiate: no input got a gradient on the CPU")
    if not first.outputs and not _changed(first, args, kwargs):
        raise ReferenceUnavailable("nothing to compare: the call returns no value and changes no input")
    made = Reference(case, sample, tuple(args), dict(kwargs), first)
    if sample.numerics is NumericalClass.PROPERTY:
        return made  # random or uninitialised: what two runs have in common is for the check to say
    second = _eager(case, sample, args, kwargs, seed=SEED + 1)
    if not results_equal(first, second):
        undrawn = torch.Generator().manual_seed(SEED + 1).get_state()
        if not torch.equal(torch.default_generator.get_state(), undrawn):
            raise ReferenceUnavailable(
                "it draws random numbers, and each device draws its own: make what is drawn an input, or turn it off"
            )
        made.nondeterministic, made.other = True, second
        made.notes.append("eager CPU gave two different answers to the same call")
    return made


def _changed(result: CallResult, args: Sequence[Any], kwargs: Any) -> bool:
    """Whether the call wrote to one of its tensor inputs."""
    before = [leaf for _, leaf in trees.flatten((tuple(args), dict(kwargs)), "") if isinstance(leaf, Tensor)]
    after = [leaf.value for leaf in result.inputs]
    return len(before) != len(after) or not all(map(bits_equal, (to_host(t)[0] for t in before), after))


def make_reference(case: Case, sample: Sample) -> Reference:
    """The reference of a sample and of each of its replays.

    Raises `ReferenceUnavailable` if the sample fails on the CPU in eager mode; its `cause` is that exception, which is
    compared with the backend's. Without a cause, the sample leaves nothing to compare, and the reason says why.
    """
    made = _same(case, sample, sample.args, sample.kwargs)
    made.replays = tuple(_same(case, sample, args, kwargs) for args, kwargs in sample.replays)
    return made
