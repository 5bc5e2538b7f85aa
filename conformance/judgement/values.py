"""Compare the values of one result with the reference: exactly, or within a bound, with special values by position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from conformance.judgement import bounds
from conformance.judgement.bounds import DeviceFormats, Subject
from conformance.judgement.findings import Check, Finding
from conformance.numerics import round_to
from conformance.reference import Reference

_NAMES = ("finite", "NaN", "inf", "-inf")


@dataclass
class Measured:
    """What one comparison found."""

    findings: list[Finding] = field(default_factory=list)
    error: float | None = None  # ulps of the device format
    slack: float | None = None
    loosest: float | None = None
    notes: list[str] = field(default_factory=list)


def real(x: Tensor) -> Tensor:
    """Complex tensors by component (a last dimension of 2), others as they are."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def kind_of(x: Tensor) -> Tensor:
    """0 finite, 1 NaN, 2 +inf, 3 -inf."""
    kind = x.isnan().to(torch.int8)
    return torch.where(x.isinf(), torch.where(x > 0, 2, 3).to(torch.int8), kind)


def place(flat_index: int, shape: Sequence[int], complex_: bool) -> str:
    """`[2, 3]`, with `.real` or `.imag` for a component of a complex element."""
    position = []
    for size in reversed(shape):
        position.append(flat_index % size)
        flat_index //= size
    position.reverse()
    part = (".real", ".imag")[position.pop()] if complex_ else ""
    return (str(position) if position else "") + part


def _first(mask: Tensor) -> int:
    return int(mask.reshape(-1).to(torch.uint8).argmax())


def _count(mask: Tensor) -> str:
    n, total = int(mask.sum()), mask.numel()
    return f"{n} of {total} elements" if total > 1 else "the only element"


def _number(x: float) -> str:
    return f"{x:.9g}"


# --- exact ----------------------------------------------------------------------------------------------------------


def differs(a: Tensor, b: Tensor) -> Tensor:
    """Mask of elements that differ: NaN equals NaN, -0 differs from +0."""
    if a.is_floating_point():
        if a.element_size() == 1:
            a, b = a.float(), b.float()
        return ~(((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan()))
    return a != b


def compare_exactly(got: Tensor, candidates: Sequence[Tensor], where: str) -> Measured:
    """Every element must equal that of one of `candidates` (same shape and dtype as `got`); the first is shown."""
    complex_ = got.is_complex()
    parts = [real(c) for c in candidates]
    mine = real(got)
    wrong = differs(mine, parts[0])
    if bool(wrong.any()):
        for other in parts[1:]:
            wrong &= differs(mine, other)
    if not bool(wrong.any()):
        return Measured(error=0.0 if mine.is_floating_point() else None, slack=0.0, loosest=0.0)
    i = _first(wrong)
    expected, value = parts[0].reshape(-1)[i].item(), mine.reshape(-1)[i].item()
    signed_zero = value == 0 and expected == 0
    special = mine.is_floating_point() and (signed_zero or not math.isfinite(value) or not math.isfinite(expected))
    message = (
        f"expected {expected!r} and got {value!r} at {place(i, mine.shape, complex_) or 'the scalar'}; "
        f"nothing else is allowed ({_count(wrong)} differ)"
    )
    if special:
        return Measured([Finding(Check.SPECIAL, where, message, "sign of zero" if signed_zero else "special")])
    return Measured([Finding(Check.VALUES, where, message, "not equal")], slack=math.inf)


# --- within a bound -------------------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """One floating result to compare within a bound; tensors are real float64 of one shape."""

    where: str
    got: Tensor
    subject: Subject
    complex_: bool
    signed_zeros: bool  # whether the sign of a zero is part of the result

    @property
    def formats(self) -> DeviceFormats:
        return self.subject.formats


def compare_within(c: Comparison, reference: Reference) -> Measured:
    """Special values by position, signs of zeros where they count, and everything finite within the bound."""
    out = Measured()
    got, target, same = c.got, c.subject.target, c.subject.same
    if got.numel() == 0:
        return out
    plain = bool((got.isfinite() & same.isfinite() & target.isfinite()).all())
    if plain and float(target.abs().max()) <= c.formats.dtype.max:
        judged = None
    else:
        target, judged = _specials(c, reference, out)
        c.subject.target = target
    unit = _unit(c, target)
    error = (got - target).abs()
    if judged is not None:
        error = torch.where(judged, error, 0.0)
    error = _forgive_underflow(c, error, target)
    _within(c, reference, out, error, unit, target)
    if c.signed_zeros:
        _signs(c, out)
    return out


def _unit(c: Comparison, target: Tensor) -> Tensor:
    """Spacing of the device's format at the result; complex numbers are as fine as their larger component."""
    unit = c.formats.unit(target)
    return unit.amax(-1, keepdim=True).expand_as(unit) if c.complex_ else unit


def _specials(c: Comparison, reference: Reference, out: Measured) -> tuple[Tensor, Tensor]:
    """(finite target by element, mask of elements whose value is left to judge); the rest is settled here.

    Where the CPU's own dtype and float64 disagree (an intermediate overflow, say), both answers are right.
    """
    f, got, same, exact = c.formats, c.got, c.subject.same, c.subject.target
    rounded = round_to(exact, f.dtype)
    accepted = [kind_of(rounded), kind_of(same)]
    if f.coarser or f.flushes or c.subject.input_formats.coarser or c.subject.input_formats.flushes:
        accepted.append(kind_of(round_to(round_to(exact, f.device), f.dtype)))
        own = _on_own_inputs(c, reference)
        if own is not None:
            accepted.append(kind_of(round_to(own, f.dtype)))
    kind = kind_of(got)
    right = torch.zeros_like(kind, dtype=torch.bool)
    for a in accepted:
        right |= kind == a
    finite = kind == 0
    # Within a few units of the largest value, overflow and that value are equally right, unless nothing is rounded.
    margin = 1 - 4 * bounds.ELEMENTWISE_ULPS * max(f.dtype.eps, f.device.eps)
    edge = (exact.abs() >= f.dtype.max * margin) & (kind >= 2) & (got.signbit() == exact.signbit())
    right |= edge & (exact != same)
    if not f.device.has_inf:  # one code for NaN and infinity, or saturation
        infinite = accepted[0] >= 2
        saturated = finite & (got.abs() >= min(f.device.max, f.dtype.max) * (1 - 2 * f.device.eps))
        right |= infinite & ((kind == 1) | (kind >= 2) | (saturated & (got.signbit() == exact.signbit())))
    usable_exact, usable_same = exact.isfinite() & (accepted[0] == 0), same.isfinite()
    right |= finite & (usable_exact | usable_same)  # as far as its kind goes; the value is judged
    wrong = ~right
    if bool(wrong.any()):
        i = _first(wrong)
        e, g = rounded.reshape(-1)[i].item(), got.reshape(-1)[i].item()
        s = same.reshape(-1)[i].item()
        was, now = _NAMES[int(accepted[0].reshape(-1)[i])], _NAMES[int(kind.reshape(-1)[i])]
        also = "" if s == e or (s != s and e != e) else f" (the CPU gives {_number(s)})"
        out.findings.append(
            Finding(
                Check.SPECIAL,
                c.where,
                f"expected {_number(e)}{also} and got {_number(g)} at "
                f"{place(i, got.shape, c.complex_) or 'the scalar'} ({_count(wrong)} differ in kind)",
                f"{now} for {was}".replace("-inf", "inf"),
            )
        )
    judged = finite & (usable_exact | usable_same) & ~wrong
    target = torch.where(usable_exact, exact, torch.where(usable_same, same, 0.0))
    return target, judged


def _forgive_underflow(c: Comparison, error: Tensor, target: Tensor) -> Tensor:
    kept = c.formats.smallest_kept
    return torch.where((c.got == 0) & (target.abs() < kept), 0.0, error) if kept else error


def _within(c: Comparison, reference: Reference, out: Measured, error: Tensor, unit: Tensor, target: Tensor) -> None:
    scale = bounds.scale_of(target)
    allowed = uncapped = over = torch.empty(0)
    for uncapped in bounds.stages(c.subject, unit, reference):
        allowed = torch.minimum(uncapped, bounds.cap(unit, target, scale))
        over = error > allowed
        if not bool(over.any()):
            break
        if c.subject.estimated and bounds.unlucky(error, allowed, over):
            out.notes.append(f"{c.where}: {_count(over)} just beyond a bound that is itself an estimate")
            allowed = torch.where(over, error, allowed)
            break
    else:
        if bool((over & (error <= uncapped)).any()):
            # Small because its terms cancel, or wrong? Measure it against what such a result usually is.
            scale = max(scale, bounds.typical_scale(c.subject, reference))
            allowed = torch.minimum(uncapped, bounds.cap(unit, target, scale))
            over = error > allowed
        # What PyTorch itself answers on the CPU is right by definition, even where that is far from exact.
        agrees = over & ((c.got - c.subject.same).abs() <= bounds.QUICK_ULPS * _unit(c, c.subject.same))
        if bool(agrees.any()):
            allowed = torch.where(agrees, error, allowed)
            over = over & ~agrees
            out.notes.append(f"{c.where}: agrees with the CPU, which is itself far from exact ({_count(agrees)})")
        if bool(over.any()) and (own := _on_own_inputs(c, reference)) is not None:
            # Exact for the inputs that the device has is right, however far the CPU's lead elsewhere (next to a pole).
            agrees = over & ((c.got - own).abs() <= bounds.QUICK_ULPS * _unit(c, own))
            allowed = torch.where(agrees, error, allowed)
            over = over & ~agrees
        if bool(over.any()):
            out.findings.append(_excess(c, error, allowed, uncapped, over, target, scale))
    out.error = float((error / unit).max())
    out.slack = float((error / allowed).max())
    size = target.abs().clamp(min=scale)
    ratio = torch.where(size > 0, allowed / size, 0.0)
    # A subnormal or zero result has nothing finer than the format's smallest value to be off by.
    ratio = torch.where(allowed <= bounds.FEWEST_ULPS_LOOSE * c.formats.dtype.tiny, 0.0, ratio)
    out.loosest = float(ratio.max())


def _on_own_inputs(c: Comparison, reference: Reference) -> Tensor | None:
    """The exact result on inputs as the device holds them, where that is not as the CPU does (real, float64)."""
    if not c.subject.represented_otherwise:
        return None
    f = c.subject.input_formats
    seen = reference.on_inputs(f.device, f.flushes)
    value = seen[c.subject.index] if seen is not None and c.subject.index is not None else None
    return real(value).double() if isinstance(value, Tensor) else None


def _excess(
    c: Comparison, error: Tensor, allowed: Tensor, uncapped: Tensor, over: Tensor, target: Tensor, scale: float
) -> Finding:
    beyond = error > uncapped
    loose = not bool(beyond.any())
    worst = torch.where(over if loose else beyond, error / allowed, 0.0)
    i = int(worst.reshape(-1).argmax())
    e, g = target.reshape(-1)[i].item(), c.got.reshape(-1)[i].item()
    off = error.reshape(-1)[i].item()
    at = place(i, c.got.shape, c.complex_) or "the scalar"
    if loose:
        return Finding(
            Check.LOOSE,
            c.where,
            f"expected {_number(e)} and got {_number(g)} at {at}: off by {off:.3g}, within the rounding error bound "
            f"{uncapped.reshape(-1)[i].item():.3g} of this op, which is more than {bounds.TOO_LOOSE:.0%} of the "
            f"result's size {scale:.3g} and could not have caught a wrong answer",
            "too loose",
        )
    size = max(abs(e), scale)
    return Finding(
        Check.VALUES,
        c.where,
        f"expected {_number(e)} and got {_number(g)} at {at}: off by {off:.3g}, allowed {allowed.reshape(-1)[i]:.3g} "
        f"({_count(beyond)} beyond)",
        "wrong" if off > 0.01 * size else "imprecise",
    )


def _signs(c: Comparison, out: Measured) -> None:
    exact, same, got = c.subject.target, c.subject.same, c.got
    wrong = (got == 0) & (exact == 0) & (same == 0)
    if not bool(wrong.any()):
        return
    wrong &= (exact.signbit() == same.signbit()) & (got.signbit() != same.signbit())
    if bool(wrong.any()):
        i = _first(wrong)
        sign = "-0.0" if bool(same.reshape(-1)[i].signbit()) else "+0.0"
        other = "+0.0" if sign == "-0.0" else "-0.0"
        out.findings.append(
            Finding(
                Check.SPECIAL,
                c.where,
                f"expected {sign} and got {other} at {place(i, got.shape, c.complex_) or 'the scalar'} "
                f"({_count(wrong)} differ in the sign of zero)",
                "sign of zero",
            )
        )


def merge(measured: Sequence[Measured], pick: Callable[[Measured], float | None]) -> float | None:
    """The largest of one measurement, None where nothing was measured."""
    values = [v for m in measured if (v := pick(m)) is not None]
    return max(values) if values else None
