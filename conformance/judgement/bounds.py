"""How far a result may be from the exact one, by the numerical class of the op; see docs/how-results-are-judged.md.

All tensors here are float64 and real (complex results come by component). Constants are factors on first-order
rounding error bounds; the class decides which bound applies, never a table of relative tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.backends.protocol import Capabilities
from conformance.cases import NumericalClass, Tolerance
from conformance.numerics import (
    ACCUMULATION_OF_DTYPE,
    FORMAT_OF_DTYPE,
    NumberFormat,
    dtype_name,
    format_named,
    format_of,
    ulp,
)
from conformance.reference import Reference, rms

QUICK_ULPS = 2.0  # a result this near is right in every class that has no limit of its own
ELEMENTWISE_ULPS = 4.0  # PyTorch's own vectorised elementary functions (SLEEF) err by up to 1 ulp, GPU ones by up to 4
ELEMENTWISE_LOSS, ELEMENTWISE_LOSS_CAP = 2.0, 16.0  # times what the CPU itself loses, up to so many ulps
COMPOSITE_ULPS = 4.0
SENSITIVITY = 8.0  # a composite result may move as if its inputs were off by so many units
LOSS = 4.0  # and lose so many times what the CPU loses in the same dtype
SHORT_SENSITIVITY, SHORT_LOSS = 3.0, 2.0  # in 16 bits and fewer, where intermediate results are mostly kept in fp32
# In 32 bits and more, one unit at the RMS of the result is allowed at every element, where nothing else explains it.
NEIGHBOURS = 8  # results of about the same size, above and below, that may lose alike
CONTRACTION_LOSS = 2.0  # the CPU sums some ops in 16 bits itself (transposed convolutions, addbmm)
CONTRACTION_ROUNDINGS = 1.5  # half a unit for the output, one for an intermediate result in the same format
UNLUCKY, UNLUCKY_EXCESS = 100_000, 2.0
UNEVIDENCED_ULPS = 16.0  # where neither an exact result nor a sensitivity can be computed
TOO_LOOSE = 0.1  # of the result's size: what a bound may not exceed
CANCELLED = 0.01  # of what the CPU loses: where a result is less sensitive than that, the loss is one of cancellation
LARGEST_TERMS = (
    1e3  # times the inputs and results: how large terms that cancel are believed to be (1 / sqrt(eps) of a norm)
)
FEWEST_ULPS_LOOSE = 2.0  # except that no bound is asked to be finer than the format itself


@dataclass(frozen=True)
class DeviceFormats:
    """How the backend under test holds one dtype."""

    dtype: NumberFormat  # what PyTorch's dtype can hold
    device: NumberFormat  # what the backend computes and stores it in
    accumulation: NumberFormat
    flushes: bool  # results and inputs below the smallest normal may be zero

    @property
    def coarser(self) -> bool:
        """Whether the device cannot hold every value of the dtype."""
        return (
            self.device.precision < self.dtype.precision
            or self.device.max < self.dtype.max
            or self.device.tiny > self.dtype.tiny
            or self.device.has_inf < self.dtype.has_inf
        )

    def unit(self, x: Tensor) -> Tensor:
        """Spacing of results at |x|: the coarser of the two formats'."""
        spacing = ulp(x, self.dtype)
        return torch.maximum(spacing, ulp(x, self.device)) if self.device is not self.dtype else spacing

    @property
    def smallest_kept(self) -> float:
        """Results smaller than this may become zero."""
        if self.flushes or not self.device.has_subnormals:
            return max(self.dtype.tiny, self.device.smallest_normal)
        return 0.0


def formats_for(dtype: torch.dtype, capabilities: Capabilities) -> DeviceFormats:
    """Declared formats of `dtype`, the dtype's own where the backend declares none.

    `ValueError` for a declared format that does not exist.
    """
    name = dtype_name(dtype)
    own = format_of(dtype)
    real = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}.get(name, name)
    declared = capabilities.number_formats.get(name) or capabilities.number_formats.get(real)
    device = format_named(declared) if declared else own
    sums = capabilities.accumulation.get(name) or capabilities.accumulation.get(real)
    default = ACCUMULATION_OF_DTYPE.get(name)
    accumulation = format_named(sums) if sums else format_named(default) if default else device
    return DeviceFormats(own, device, accumulation, bool(capabilities.flushes_subnormals))


def contraction_factor(terms: int) -> float:
    """n of the bound n * u * sum|a||b| for a sum of `terms` products.

    The deterministic bound grows like n; rounding errors of random sign grow like sqrt(n), and min(n, 8 sqrt(n)) holds
    with probability beyond 1 - 2e-13 (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4, lambda = 8),
    while n alone would allow any answer for long sums. One more for the product.
    """
    return min(terms, 8.0 * math.sqrt(terms)) + 1.0


@dataclass
class Subject:
    """One floating result to find the bound of."""

    index: int | None  # among reference.tensors_of; None: not one of them (postprocessed), no evidence beyond `same`
    numerics: NumericalClass
    target: Tensor  # exact result, or the CPU's where there is none
    same: Tensor  # the CPU's result in the case's dtype
    formats: DeviceFormats  # of the result's dtype
    input_formats: DeviceFormats  # of the case's dtype
    has_exact: bool
    ulps: float | None = None  # what the sample allows an elementwise op; None: the default of this module
    tolerance: Tolerance | None = None  # what somebody declared instead of all this

    @property
    def represented_otherwise(self) -> bool:
        """Whether the device may see other inputs than the CPU, because it cannot hold them as they are."""
        return self.index is not None and (self.input_formats.coarser or self.input_formats.flushes)

    @property
    def estimated(self) -> bool:
        """Whether the bound follows from random runs, and not from a proof or somebody's word."""
        return self.numerics is NumericalClass.COMPOSITE and self.tolerance is None

    @property
    def short(self) -> bool:
        """Whether the case's dtype has 16 bits or fewer, so that kernels keep what lies between in a wider one."""
        return self.input_formats.dtype.precision <= format_named("fp16").precision


def stages(subject: Subject, unit: Tensor, reference: Reference) -> Iterator[Tensor]:
    """Allowed |error| by element: bounds of growing width and cost, the last of which is that of the class.

    A result within an early one is within the last, so that most samples are judged without the costly evidence.
    """
    if subject.tolerance is not None:
        yield (subject.tolerance.ulps * unit).clamp(min=subject.tolerance.atol)
        return
    if subject.numerics is NumericalClass.ELEMENTWISE and subject.ulps is not None:
        allowed = subject.ulps * unit
        yield allowed
        if subject.represented_otherwise:
            yield allowed + _representation(subject, reference)
        return
    yield QUICK_ULPS * unit
    loss = (subject.same - subject.target).abs().nan_to_num(0.0, 0.0, 0.0)
    if subject.numerics is NumericalClass.ELEMENTWISE:
        allowed = ELEMENTWISE_ULPS * unit + torch.minimum(ELEMENTWISE_LOSS * loss, ELEMENTWISE_LOSS_CAP * unit)
        yield allowed + _representation(subject, reference)
        return
    pooled = rms(loss) or 0.0
    loss = _among_neighbours(loss, subject.target)
    if subject.numerics is NumericalClass.CONTRACTION:
        sums = _contraction(subject, unit, reference)
        if sums is not None:
            yield sums
            yield sums + CONTRACTION_LOSS * loss.clamp(min=pooled)
            return
    sensitivity, losses = (SHORT_SENSITIVITY, SHORT_LOSS) if subject.short else (SENSITIVITY, LOSS)
    units = (COMPOSITE_ULPS if subject.has_exact else UNEVIDENCED_ULPS) * unit
    yield losses * loss + units
    spare = 0.0 if subject.short else subject.formats.device.eps * scale_of(subject.target)
    allowed = units
    for thorough in (False, True) if subject.index is not None and reference.slow else (False,):
        moved = None
        if subject.index is not None:
            moved = reference.sensitivity(subject.input_formats.device, thorough=thorough)[subject.index]
        general = rms(moved.double()) if moved is not None else None
        if moved is None or not general:
            allowed = losses * loss.clamp(min=pooled) + units + spare
        else:  # what is lost on the whole is lost where it is sensitive: tiny results may be accurate
            moved = moved.double()
            allowed = losses * torch.maximum(loss, pooled / general * moved) + units + spare + sensitivity * moved
        yield allowed
    on_the_way = _roundings(subject, reference)
    if on_the_way is not None:  # only now: it costs dozens of runs, and only what would be called wrong comes here
        yield torch.maximum(allowed, _among_neighbours(on_the_way, subject.target) + units + spare)


def unlucky(error: Tensor, allowed: Tensor, over: Tensor) -> bool:
    """Whether what is beyond the bound is no more than one expects of millions of numbers, each with a bound of its own
    that is estimated from a few random runs: one in UNLUCKY, and by no more than UNLUCKY_EXCESS."""
    return int(over.sum()) * UNLUCKY <= over.numel() and bool((error <= UNLUCKY_EXCESS * allowed)[over].all())


def _roundings(subject: Subject, reference: Reference) -> Tensor | None:
    """What is lost if every operation rounds: in 16 bits each kernel once, as it then computes in a wider format.

    Not where the device's own format is coarser than the dtype's: it rounds within kernels as well.
    """
    if subject.index is None or not subject.has_exact:
        return None
    formats = subject.input_formats
    in_steps = not subject.short or formats.device.precision < formats.dtype.precision
    lost = reference.roundings(formats.device, formats.accumulation, in_steps=in_steps)[subject.index]
    return None if lost is None else lost.double()


def _among_neighbours(loss: Tensor, target: Tensor) -> Tensor:
    """What the CPU loses at an element or at one of about the same size, in proportion where that one is larger.

    The CPU may be lucky at one element, and another order of operations unlucky there. Elements of one size lose alike,
    whether tiny results are accurate (softmax) or cancel (the derivative of tanh).
    """
    size, order = target.abs().nan_to_num(0.0, 0.0, 0.0).reshape(-1).sort()
    lost = loss.reshape(-1)[order]
    found = lost.clone()
    for step in range(1, min(NEIGHBOURS, len(lost) - 1) + 1):
        torch.maximum(found[step:], lost[:-step], out=found[step:])  # of smaller results
        ratio = size[:-step] / size[step:].clamp(min=5e-324)
        torch.maximum(found[:-step], lost[step:] * ratio, out=found[:-step])
    return torch.empty_like(found).scatter_(0, order, found).reshape(loss.shape)


def _representation(subject: Subject, reference: Reference) -> Tensor:
    """How far the exact result moves when the inputs are first rounded to what the device can hold."""
    formats = subject.input_formats
    if subject.represented_otherwise:
        assert subject.index is not None
        values = reference.on_inputs(formats.device, formats.flushes)
        if values is not None:
            value = values[subject.index]
            if isinstance(value, Tensor):
                value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
                return (value.double() - subject.target).abs().nan_to_num(0.0, 0.0, 0.0) * 1.5
    return torch.zeros_like(subject.target)


def _contraction(subject: Subject, unit: Tensor, reference: Reference) -> Tensor | None:
    sizes = reference.magnitude()
    size = sizes[subject.index] if sizes is not None and subject.index is not None else None
    if size is None:
        return None
    formats = subject.input_formats
    u = formats.accumulation.eps / 2
    factor = contraction_factor(reference.terms()) * u
    if formats.coarser:
        factor += formats.device.eps  # both operands rounded by up to half a unit
    return (factor * size.double()).nan_to_num(0.0, 0.0, 0.0) + CONTRACTION_ROUNDINGS * unit


def cap(unit: Tensor, target: Tensor, scale: float) -> Tensor:
    """The widest bound that can still catch a wrong answer, for results of size `scale`."""
    size = target.abs().nan_to_num(0.0, 0.0, 0.0).clamp(min=scale)
    return torch.maximum(TOO_LOOSE * size, FEWEST_ULPS_LOOSE * unit)


def scale_of(target: Tensor) -> float:
    """RMS of the finite elements, 0 if there are none."""
    return rms(target) or 0.0


def typical_scale(subject: Subject, reference: Reference) -> float:
    """Size of what went into a result that is itself small, so that rounding errors have something to be small beside.

    Where the CPU, or a run with random roundings (the CPU may be lucky), loses far more than the result is sensitive to
    its inputs, terms cancelled on the way: a gradient that is zero in theory, say. What is lost is then about eps times
    the size of those terms, which therefore is loss / eps, if that is a size that numbers of this sample have (else a
    threshold was crossed, and nothing cancelled). Where nothing cancelled it is the size that such a result has for
    general inputs, see `Reference.typical`.
    """
    if subject.index is None:
        return 0.0
    if subject.has_exact:
        moved = reference.sensitivity(subject.input_formats.device)[subject.index]
        sensitive = 0.0 if moved is None else rms(moved.double()) or 0.0
        largest = LARGEST_TERMS * reference.data_scale() * subject.input_formats.dtype.eps
        lost = [rms((subject.same - subject.target).nan_to_num(0.0, 0.0, 0.0)) or 0.0]
        lost = [loss for loss in lost if loss <= largest]
        on_the_way = _roundings(subject, reference)
        if on_the_way is not None:  # without thresholds already
            lost.append(min((rms(on_the_way) or 0.0) / reference.deviations(), largest))
        cancelled = [loss for loss in lost if sensitive < CANCELLED * loss]
        if cancelled:
            return max(cancelled) / subject.input_formats.dtype.eps
    return reference.typical()[subject.index] or 0.0


def case_formats(reference: Reference, capabilities: Capabilities, result: DeviceFormats) -> DeviceFormats:
    """Formats of the case's dtype where that is a floating one, else those of the result."""
    name = reference.case.dtype
    if name in FORMAT_OF_DTYPE and not format_of(name).integer:
        return formats_for(reference.dtype, capabilities)
    return result
