"""Results that are right without being equal: random numbers and uninitialised memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from conformance.calls import invoke, prepare
from conformance.reference import Reference

FALSE_ALARM = 1e-7  # probability of a complaint about two samples of one distribution


def _values(x: Tensor) -> Tensor:
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x.double().reshape(-1)


def compare_random(expected: Tensor, got: Tensor, hole: Tensor | None) -> str | None:
    """A complaint if `got` cannot be another draw of what `expected` was drawn from, judged on all elements together.

    NaN and infinities must be as frequent, and the two-sample Kolmogorov-Smirnov distance must stay below its critical
    value sqrt(-ln(alpha / 2) / 2 * (n + m) / (n m)); positions in `hole` (uninitialised memory) are left out.
    """
    if hole is not None:
        expected, got = expected[~hole], got[~hole]
    if got.numel() == 0:
        return None
    e, g = _values(expected), _values(got)
    n = e.numel()
    critical = math.sqrt(-math.log(FALSE_ALARM / 2) / 2 * 2 / n)
    bad_e, bad_g = ~e.isfinite(), ~g.isfinite()
    share = abs(int(bad_e.sum()) - int(bad_g.sum())) / n
    if share > critical or (bool(bad_g.any()) and not bool(bad_e.any())):
        return f"{int(bad_g.sum())} of {n} random numbers are NaN or infinite, on the CPU {int(bad_e.sum())}"
    e, g = e[~bad_e], g[~bad_g]
    if e.numel() == 0 or g.numel() == 0:
        return None
    steps = torch.cat([e, g]).unique()
    cdf_e = torch.searchsorted(e.sort().values, steps, right=True) / e.numel()
    cdf_g = torch.searchsorted(g.sort().values, steps, right=True) / g.numel()
    distance = float((cdf_e - cdf_g).abs().max())
    limit = math.sqrt(-math.log(FALSE_ALARM / 2) / 2 * (e.numel() + g.numel()) / (e.numel() * g.numel()))
    if distance > limit:
        return (
            f"random numbers of another distribution: Kolmogorov-Smirnov distance {distance:.3g}, "
            f"at most {limit:.3g} for {n} numbers; mean {float(g.mean()):.4g}, on the CPU {float(e.mean()):.4g}"
        )
    return None


def uninitialized_positions(reference: Reference) -> list[Tensor | None]:
    """For each output tensor a mask of elements that PyTorch leaves uninitialised; None: not a tensor, or all known.

    Found by PyTorch's own switch that fills fresh memory with NaN (floats) or the largest value (integers) in
    deterministic mode: elements that then have the fill value and otherwise do not, or all if all have it.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    switch: Any = torch.utils.deterministic  # a module with a property, which type checkers do not see
    filling = switch.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        switch.fill_uninitialized_memory = True
        sample = reference.sample
        prepared = prepare(
            reference.args, reference.kwargs, direction=reference.case.direction, differentiable=sample.differentiable
        )
        filled = invoke(prepared, sample.fn)
    except Exception:  # an op that refuses deterministic mode: nothing is known to be uninitialised
        return [None] * len(reference.same.outputs)
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        switch.fill_uninitialized_memory = filling
    holes: list[Tensor | None] = []
    for normal, marked in zip(reference.same.outputs, filled.outputs, strict=True):
        if not isinstance(normal.value, Tensor) or not isinstance(marked.value, Tensor):
            holes.append(None)
            continue
        a, b = normal.value, marked.value
        if b.is_floating_point() or b.is_complex():
            marks = b.isnan()
            holes.append(marks if bool(marks.all()) else marks & ~a.isnan())
        elif b.dtype is torch.bool:
            holes.append(None)
        else:
            marks = b == torch.iinfo(b.dtype).max
            holes.append(marks if bool(marks.all()) else marks & (a != b))
    return holes
