"""Results that are right without being equal: random numbers and uninitialised memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.calls import invoke, prepare
from conformance.reference import Reference

FALSE_ALARM = 1e-7  # probability of a complaint about two samples of one distribution
DRAWS = 16  # of the CPU, of which each is compared with each
DEVIATIONS = 5.3  # of a normal number: exceeded once in 10^7 times


def _values(x: Tensor) -> Tensor:
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x.double().reshape(-1)


def compare_random(
    expected: Tensor, got: Tensor, hole: Tensor | None, of_draws: Callable[[], float] | None = None
) -> str | None:
    """A complaint if `got` cannot be another draw of what `expected` was drawn from, judged on all elements together.

    NaN and infinities must be as frequent, and the two-sample Kolmogorov-Smirnov distance must stay below its critical
    value sqrt(-ln(alpha / 2) / 2 * (n + m) / (n m)); positions in `hole` (uninitialised memory) are left out.
    That value is for independent elements. Where one draw decides many of them (whole channels are dropped), there are
    fewer: `of_draws` gives what is allowed then (see `limit_of_draws`), and is called only if there is something to
    complain about.
    """
    if hole is not None:
        expected, got = expected[~hole], got[~hole]
    if got.numel() == 0:
        return None
    e, g = _values(expected), _values(got)
    n = e.numel()
    critical = _critical(n, n)
    bad_e, bad_g = ~e.isfinite(), ~g.isfinite()
    share = abs(int(bad_e.sum()) - int(bad_g.sum())) / n
    if share > critical or (bool(bad_g.any()) and not bool(bad_e.any())):
        return f"{int(bad_g.sum())} of {n} random numbers are NaN or infinite, on the CPU {int(bad_e.sum())}"
    e, g = e[~bad_e], g[~bad_g]
    if e.numel() == 0 or g.numel() == 0:
        return None
    shares = empirical([e, g])
    found, limit = float((shares[0] - shares[1]).abs().max()), _critical(e.numel(), g.numel())
    if found > limit and of_draws is not None:
        limit = max(limit, of_draws())
    if found > limit:
        return (
            f"random numbers of another distribution: Kolmogorov-Smirnov distance {found:.3g}, "
            f"at most {limit:.3g} for {n} numbers; mean {float(g.mean()):.4g}, on the CPU {float(e.mean()):.4g}"
        )
    return None


def _critical(n: int, m: int) -> float:
    return math.sqrt(-math.log(FALSE_ALARM / 2) / 2 * (n + m) / (n * m))


def empirical(tensors: Sequence[Tensor]) -> Tensor:
    """By tensor (real, without NaN), the share of its elements up to each value that occurs in any of them."""
    steps = torch.cat([t.reshape(-1) for t in tensors]).unique()
    return torch.stack(
        [torch.searchsorted(t.reshape(-1).sort().values, steps, right=True) / t.numel() for t in tensors]
    )


def limit_of_draws(reference: Reference, path: str) -> float:
    """How far two draws of the tensor at `path`, an output or a gradient, may be apart, elements independent or not.

    The difference of two empirical distributions is about a normal process, whose maximum exceeds its mean by more
    than u with a probability below 2 exp(-u^2 / 2 s^2), where s is the largest deviation at any one step (the
    inequality of Borell and Tsirelson, Ibragimov, Sudakov; R. J. Adler and J. E. Taylor, "Random Fields and Geometry",
    2007, theorem 2.1.1). Mean and s are measured on draws that the CPU makes with other seeds. 0 where a call fails or
    gives no such tensor.
    """
    sample = reference.sample
    draws = []
    for seed in range(DRAWS):

        def seeded(*args: Any, seed: int = seed, **kwargs: Any) -> Any:
            torch.default_generator.manual_seed(seed)
            return sample.fn(*args, **kwargs)

        prepared = prepare(
            reference.args, reference.kwargs, direction=reference.case.direction, differentiable=sample.differentiable
        )
        try:
            made = invoke(prepared, seeded, cotangents=reference.same.cotangents)
        except Exception:  # a call that fails for some seeds: nothing is known of the others
            return 0.0
        found = [leaf.value for leaf in (*made.outputs, *made.gradients) if leaf.path == path]
        if len(found) != 1 or not isinstance(found[0], Tensor) or not found[0].numel():
            return 0.0
        draws.append(_values(found[0]).nan_to_num(0.0))
    shares = empirical(draws)
    pairs = [float((a - b).abs().max()) for a, b in itertools.combinations(shares, 2)]
    return sum(pairs) / len(pairs) + DEVIATIONS * math.sqrt(2) * float(shares.std(0).max())


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
