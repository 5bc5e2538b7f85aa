"""Arguments whose default depends on the dtype, written out, so that the float64 reference is the same function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Fn = Callable[..., Any]


def resolved(name: str, fn: Fn, dtype: torch.dtype) -> Fn:
    """`fn` with the defaults that it has in `dtype` given explicitly; `name` is a key of `RESOLVERS`."""
    return functools.partial(RESOLVERS[name], fn, dtype)


def _finite_limits(fn: Fn, dtype: torch.dtype, x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    """`nan_to_num` replaces infinities by the largest finite values of its dtype."""
    if dtype.is_floating_point or dtype.is_complex:
        limits = torch.finfo(dtype)
        posinf = limits.max if posinf is None else posinf
        neginf = limits.min if neginf is None else neginf
    return fn(x, nan, posinf, neginf)


def _epsilon(fn: Fn, dtype: torch.dtype, x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """`rms_norm` adds the machine epsilon of its computation: float32's for the 16-bit formats, as documented by
    the kernels that compute those in float32, else that of the input."""
    if eps is None:
        computed_in = torch.float32 if dtype.itemsize <= 2 else dtype
        eps = torch.finfo(computed_in).eps
    return fn(x, shape, weight, eps)


def _rank_tolerance(fn: Fn, dtype: torch.dtype, x: Any, *args: Any, **kwargs: Any) -> Any:
    """`matrix_rank` and `pinv` cut singular values at `max(m, n) * eps` relative to the largest, unless `atol` is
    given and positive (then `rtol` is 0)."""
    given = args[:1] or [kwargs[k] for k in ("tol", "rcond", "rtol", "atol") if kwargs.get(k) is not None]
    if given:
        return fn(x, *args, **kwargs)
    return fn(x, *args, **{**kwargs, "rtol": max(x.shape[-2:]) * torch.finfo(dtype).eps})


RESOLVERS: dict[str, Callable[..., Any]] = {
    "finite_limits": _finite_limits,
    "epsilon": _epsilon,
    "rank_tolerance": _rank_tolerance,
}
