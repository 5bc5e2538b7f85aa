"""What must hold for results that have no single right value: random, uninitialised or non-unique ones.

Each check is called as `check(subject, inputs, output, reference)`: the op's subject, `(args, kwargs)` as they were
before the call, and the CPU values of both sides. It returns a complaint, or None. Shapes and dtypes have been compared
before. Tolerances are stated in roundings of the output's dtype and grow with the size of the problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from op_coverage.upstream import pytree

Inputs = tuple[Sequence[Any], Mapping[str, Any]]
Check = Callable[[str, Inputs, Any, Any], str | None]

SIGMAS = 6.0  # of a moment or a count: a right generator fails once in 5e8 (two-sided normal tail)
FEWEST_DRAWS = 20  # below it nothing is said about moments and counts
NOT_ALIKE_FROM = 5  # so many equal draws of a continuous distribution have a chance below 1e-8 even in bfloat16


def metadata_only(subject: str, inputs: Inputs, output: Any, reference: Any) -> str | None:
    """Memory as it comes: same containers, shapes and dtypes as the reference."""
    ours, our_tree = pytree.tree_flatten(output)
    theirs, their_tree = pytree.tree_flatten(reference)
    if our_tree != their_tree:
        return f"returned {our_tree}, the CPU returns {their_tree}"
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, Tensor) and (not isinstance(a, Tensor) or a.shape != b.shape or a.dtype != b.dtype):
            return f"returned {_kind(a)}, the CPU returns {_kind(b)}"
    return None


# --- random numbers ---------------------------------------------------------------------------------------------------


def random(subject: str, inputs: Inputs, output: Any, reference: Any) -> str | None:
    """Values lie in the support of the distribution; with enough of them, they differ and their mean is right."""
    args, kwargs = inputs
    x = output.double()
    if not bool(x.isfinite().all()):
        return f"{int((~x.isfinite()).sum())} of {x.numel()} numbers are not finite"
    if subject == "multinomial":
        return _multinomial(args, kwargs, output)
    if subject == "bernoulli":
        p = args[0].double()
        wrong = ((x != 0) & (x != 1)) | ((p == 0) & (x != 0)) | ((p == 1) & (x != 1))
        return f"{int(wrong.sum())} of {x.numel()} draws are not a possible outcome" if bool(wrong.any()) else None
    if subject in ("randint", "randint_like"):
        return _randint(subject, args, x)
    low, high, high_included, mean, deviation = _DISTRIBUTIONS[subject](args, kwargs)
    outside = (x < low) | (x > high) | ((x == high) & (not high_included))
    if bool(outside.any()):
        worst = float(x[outside][0])
        return f"{int(outside.sum())} of {x.numel()} numbers are outside [{low}, {high}], for instance {worst}"
    return _not_alike(subject, x) or _moments(x, mean, deviation)


def _normal(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    mean, deviation = (float(a) if not isinstance(a, Tensor) else a.double() for a in args[:2])
    return -math.inf, math.inf, False, mean, deviation


def _number_mean(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    # OpInfo passes the standard deviation first, and a tensor as the standard deviation second.
    first, second = args[:2]
    if isinstance(second, Tensor):
        return -math.inf, math.inf, False, second.double(), float(first)
    return -math.inf, math.inf, False, float(second), float(first)


def _log_normal(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    mu, sigma = float(args[1]), float(args[2])
    mean = math.exp(mu + sigma**2 / 2)
    return 0.0, math.inf, False, mean, mean * math.sqrt(math.expm1(sigma**2))


_DISTRIBUTIONS: dict[str, Callable[..., tuple[Any, ...]]] = {
    # lowest, highest, whether the highest occurs, mean, standard deviation (None: has none)
    "cauchy": lambda a, k: (-math.inf, math.inf, False, None, None),
    "exponential": lambda a, k: (0.0, math.inf, False, 1 / float(a[1]), 1 / float(a[1])),
    "geometric": lambda a, k: (1.0, math.inf, False, 1 / a[1], math.sqrt(1 - a[1]) / a[1]),
    "log_normal": _log_normal,
    "normal": _normal,
    "normal.in_place": lambda a, k: (-math.inf, math.inf, False, float(a[1]), float(a[2])),
    "normal.number_mean": _number_mean,
    "rand_like": lambda a, k: (0.0, 1.0, False, 0.5, math.sqrt(1 / 12)),
    "randn": lambda a, k: (-math.inf, math.inf, False, 0.0, 1.0),
    "randn_like": lambda a, k: (-math.inf, math.inf, False, 0.0, 1.0),
    # Its documentation excludes the upper end, but the CPU's own rounding to 16 bits reaches it.
    "uniform": lambda a, k: (float(a[1]), float(a[2]), True, (a[1] + a[2]) / 2, (a[2] - a[1]) / math.sqrt(12)),
}

_DISCRETE = frozenset({"geometric"})


def _not_alike(subject: str, x: Tensor) -> str | None:
    if subject in _DISCRETE or x.numel() < NOT_ALIKE_FROM:
        return None
    flat = x.flatten()
    return f"all {x.numel()} numbers are {float(flat[0])}" if bool((flat == flat[0]).all()) else None


def _moments(x: Tensor, mean: Any, deviation: Any) -> str | None:
    if mean is None or x.numel() < FEWEST_DRAWS:
        return None
    standard = (x - mean) / deviation
    off = float(standard.mean()) * math.sqrt(x.numel())
    return f"the mean of {x.numel()} numbers is {off:.1f} standard errors off" if abs(off) > SIGMAS else None


def _randint(subject: str, args: Sequence[Any], x: Tensor) -> str | None:
    numbers = [a for a in args if isinstance(a, int) and not isinstance(a, bool)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    wrong = (x < low) | (x >= high) | (x != x.floor())
    if bool(wrong.any()):
        return f"{int(wrong.sum())} of {x.numel()} numbers are no integers in [{low}, {high})"
    return None


def _multinomial(args: Sequence[Any], kwargs: Mapping[str, Any], output: Tensor) -> str | None:
    weights = args[0]
    if bool((output < 0).any()) or bool((output >= weights.shape[-1]).any()):
        return f"indices outside [0, {weights.shape[-1]})"
    if bool((weights.gather(-1, output) == 0).any()):
        return "an outcome of probability zero was drawn"
    with_replacement = args[2] if len(args) > 2 else kwargs.get("replacement", False)
    ordered = output.sort(-1).values
    if not with_replacement and bool((ordered[..., 1:] == ordered[..., :-1]).any()):
        return "an outcome was drawn twice without replacement"
    return None


# --- dropout ----------------------------------------------------------------------------------------------------------


def _rate(args: Sequence[Any], kwargs: Mapping[str, Any], training_by_default: bool) -> float:
    """The probability of dropping; 0 outside training."""
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", training_by_default)
    return float(p) if training else 0.0


def dropout(subject: str, inputs: Inputs, output: Any, reference: Any) -> str | None:
    """Every element is 0 or x / (1 - p); in dropout2d and 3d whole channels are."""
    args, kwargs = inputs
    x, p = args[0].double(), _rate(args, kwargs, True)
    kept = torch.zeros_like(x) if p >= 1 else x / (1 - p)
    return _two_way(subject, x, output, kept, torch.zeros_like(x), p)


def alpha_dropout(subject: str, inputs: Inputs, output: Any, reference: Any) -> str | None:
    """Every element is a·x + b or a·α + b, with the constants of Klambauer et al., "Self-Normalizing Neural Networks"
    (2017), section 3: the mean and variance of standard normal input are kept; α is the negative limit of SELU."""
    args, kwargs = inputs
    p = _rate(args, kwargs, False)
    x = args[0].double()
    if p >= 1:
        return _two_way(subject, x, output, torch.zeros_like(x), torch.zeros_like(x), p)
    limit = -1.0507009873554805 * 1.6732632423543772
    q = 1 - p
    a = (q + limit**2 * q * p) ** -0.5
    b = -a * p * limit
    return _two_way(subject, x, output, a * x + b, torch.full_like(x, a * limit + b), p, scale=abs(a * limit))


def _two_way(
    subject: str, x: Tensor, output: Tensor, kept: Tensor, dropped: Tensor, p: float, scale: float = 0.0
) -> str | None:
    # Three roundings (scale, product, sum), each of at most half a unit of the largest term.
    eps = torch.finfo(output.dtype).eps if output.is_floating_point() else 0.0
    room = 3 * eps * torch.maximum(kept.abs(), torch.full_like(kept, scale)) + 1e-7 * eps
    y = output.double()
    is_kept, is_dropped = (y - kept).abs() <= room, (y - dropped).abs() <= room
    neither = ~is_kept & ~is_dropped
    if bool(neither.any()):
        where = tuple(int(i) for i in neither.nonzero()[0])
        return (
            f"{int(neither.sum())} of {y.numel()} elements are neither kept nor dropped, for instance "
            f"{float(y[where])} at {where}: {float(kept[where])} or {float(dropped[where])} would be right"
        )
    if p <= 0 and not bool(is_kept.all()):
        return "elements were dropped although p is 0 or training is off"
    if p >= 1 and not bool(is_dropped.all()):
        return "elements were kept although p is 1"
    told_apart = is_kept ^ is_dropped
    channels = _channels(subject, y)
    if channels is not None and y.numel():
        flat_kept, flat_told = (is_kept.flatten(channels), told_apart.flatten(channels))
        some = (flat_kept & flat_told).any(-1) & (~flat_kept & flat_told).any(-1)
        return f"{int(some.sum())} channels were dropped in part" if bool(some.any()) else None
    n = int(told_apart.sum())
    if n >= FEWEST_DRAWS and 0 < p < 1:
        off = (int((is_dropped & told_apart).sum()) - n * p) / math.sqrt(n * p * (1 - p))
        return f"the number of dropped elements is {off:.1f} standard errors off" if abs(off) > SIGMAS else None
    return None


def _channels(subject: str, y: Tensor) -> int | None:
    """First dimension inside a channel, for the ops that drop whole channels. All take a batch first, except that
    dropout3d takes a single sample of four dimensions."""
    if subject == "nn.functional.dropout3d":
        return y.dim() - 3
    whole = subject == "nn.functional.dropout2d" or subject.startswith("nn.functional.feature_alpha_dropout")
    return 2 if whole and y.dim() > 2 else None


def random_slope(subject: str, inputs: Inputs, output: Any, reference: Any) -> str | None:
    """`rrelu` in training: positive elements stay, negative ones are scaled by a slope between the two bounds."""
    args, kwargs = inputs
    x, y = args[0].double(), output.double()
    lower = float(args[1] if len(args) > 1 else kwargs.get("lower", 1 / 8))
    upper = float(args[2] if len(args) > 2 else kwargs.get("upper", 1 / 3))
    room = torch.finfo(output.dtype).eps * x.abs()
    scaled = (y <= lower * x + room) & (y >= upper * x - room)
    kept = (y == x) | (y.isnan() & x.isnan())
    right = torch.where((x < 0) & x.isfinite(), scaled, kept)
    return None if bool(right.all()) else f"{int((~right).sum())} of {y.numel()} elements have a slope out of bounds"


def drawn_from_input(subject: str, inputs: Inputs, output: Any, reference: Any) -> str | None:
    """Pooling over random windows: values are elements of their channel, at the indices where those are returned. With
    the random numbers given as an argument, the result is unique."""
    args, kwargs = inputs
    if kwargs.get("_random_samples") is not None:
        return _equal_all(output, reference)
    rank = 2 if subject.endswith("2d") else 3
    values, indices = output if isinstance(output, tuple | list) else (output, None)
    x = args[0].flatten(-rank)
    y = values.flatten(-rank)
    if indices is not None:
        flat = indices.flatten(-rank)
        if bool((flat < 0).any()) or bool((flat >= x.shape[-1]).any()):
            return "indices outside the input"
        return None if torch.equal(x.gather(-1, flat), y) else "values differ from the elements at the returned indices"
    found = (y.unsqueeze(-1) == x.unsqueeze(-2)).any(-1)
    return None if bool(found.all()) else f"{int((~found).sum())} of {y.numel()} values are not in their channel"


# --- orders and sets --------------------------------------------------------------------------------------------------

_DIM_AT = {"sort": 1, "argsort": 1, "topk": 2, "kthvalue": 2, "median": 1, "nanmedian": 1, "mode": 1, "cummax": 1}
_DIM_AT["cummin"] = 1


def ordering(subject: str, inputs: Inputs, output: Any, reference: Any) -> str | None:
    """Values equal the reference's; indices lead to them, and are all different where the result is a permutation."""
    args, kwargs = inputs
    x = args[0]
    at = _DIM_AT[subject]
    dim = args[at] if len(args) > at else kwargs.get("dim", -1)
    if isinstance(output, Tensor) and subject != "argsort":
        return _equal_all(output, reference)
    if kwargs.get("stable"):
        return _equal_all(output, reference)
    x = x.unsqueeze(0) if x.dim() == 0 else x
    values, indices = (None, output) if subject == "argsort" else output
    expected = x.gather(dim, _like_input(reference, x, dim)) if subject == "argsort" else reference[0]
    if values is not None:
        if subject == "topk" and kwargs.get("sorted", args[4] if len(args) > 4 else True) is False:
            ours, theirs = values.sort(dim).values, expected.sort(dim).values
        else:
            ours, theirs = values, expected
        if not _same(ours, theirs):
            return "values differ from the reference"
    found = _like_input(indices, x, dim)
    size = x.shape[dim]
    if bool((found < 0).any()) or bool((found >= max(size, 1)).any()):
        return f"indices outside [0, {size})"
    reached = x.gather(dim, found)
    wanted = _like_input(expected if values is None else values, x, dim)
    if not _same(reached, wanted):
        return "indices do not lead to the values"
    if subject in ("sort", "argsort", "topk"):
        steps = found.sort(dim).values.diff(dim=dim)
        if bool((steps == 0).any()):
            return "an index occurs twice"
    return None


def _like_input(t: Tensor, x: Tensor, dim: int) -> Tensor:
    """`t` with the reduced dimension put back, so that it has the rank of `x`."""
    if t.dim() == x.dim():
        return t
    return t.unsqueeze(0) if t.dim() == 0 and x.dim() == 1 else t.unsqueeze(dim)


def unique(subject: str, inputs: Inputs, output: Any, reference: Any) -> str | None:
    """With `sorted=True`, or along a dimension, everything is unique; else the values may come in any order, and
    inverse indices and counts must fit them."""
    args, kwargs = inputs
    if kwargs.get("sorted", True) or kwargs.get("dim") is not None:
        return _equal_all(output, reference)
    ours = list(output) if isinstance(output, tuple | list) else [output]
    theirs = list(reference) if isinstance(reference, tuple | list) else [reference]
    values, order = ours[0].sort()
    expected, expected_order = theirs[0].sort()
    if not _same(values, expected):
        return "the set of values differs from the reference"
    rest, expected_rest = ours[1:], theirs[1:]
    if kwargs.get("return_inverse"):
        inverse = rest.pop(0)
        expected_rest.pop(0)
        if not _same(ours[0][inverse].reshape(args[0].shape), args[0]):
            return "inverse indices do not lead back to the input"
    if rest and not torch.equal(rest[0][order], expected_rest[0][expected_order]):
        return "counts differ from the reference"
    return None


# --- factorisations ---------------------------------------------------------------------------------------------------

ROUNDINGS = 30.0  # of the largest dimension times eps: backward error of Householder methods, with room


def factorisation(subject: str, inputs: Inputs, output: Any, reference: Any) -> str | None:
    """The factors have their structure (orthogonal, triangular), and their product is the input."""
    args, kwargs = inputs
    a = _wide(args[0])
    return _FACTORISATIONS[subject](a, args, kwargs, *map(_wide, output), reference=reference)


def _qr(a: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], q: Tensor, r: Tensor, reference: Any) -> str | None:
    eps = _eps(args[0])
    if not torch.equal(r, r.triu()):
        return "R is not upper triangular"
    if q.numel() == 0 and a.numel():  # mode="r"
        return _near("RᴴR differs from AᴴA", r.mH @ r, a.mH @ a, eps)
    return _orthonormal("Q", q, eps) or _near("QR differs from A", q @ r, a, eps)


def _geqrf(
    a: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], packed: Tensor, tau: Tensor, reference: Any
) -> str | None:
    k = tau.shape[-1]
    q = torch.linalg.householder_product(packed[..., :, :k], tau)
    return _near("QR differs from A", q @ packed.triu()[..., :k, :], a, _eps(args[0]))


def _svd(
    a: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], u: Tensor, s: Tensor, vh: Tensor, reference: Any
) -> str | None:
    eps = _eps(args[0])
    off = _near("singular values differ from the reference", s, _wide(reference[1]), eps)
    if off or not kwargs.get("compute_uv", True):
        return off
    k = s.shape[-1]
    return (
        _orthonormal("U", u, eps)
        or _orthonormal("V", vh.mH, eps)
        or _near("U S Vᴴ differs from A", (u[..., :k] * s.unsqueeze(-2)) @ vh[..., :k, :], a, eps)
    )


def _old_svd(
    a: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], u: Tensor, s: Tensor, v: Tensor, reference: Any
) -> str | None:
    return _svd(a, args, kwargs, u, s, v.mH, reference)


def _eigh(
    a: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], w: Tensor, v: Tensor, reference: Any
) -> str | None:
    lower = str(args[1] if len(args) > 1 else kwargs.get("UPLO", "L")).upper() == "L"
    half = a.tril(-1) if lower else a.triu(1)
    a = half + half.mH + torch.diag_embed(a.diagonal(0, -2, -1).real.to(a.dtype))
    eps = _eps(args[0])
    return (
        _near("eigenvalues differ from the reference", w, _wide(reference[0]), eps)
        or _orthonormal("V", v, eps)
        or _near("V W Vᴴ differs from A", (v * w.unsqueeze(-2)) @ v.mH, a, eps)
    )


def _eig(a: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any], w: Tensor, v: Tensor, reference: Any) -> str | None:
    norms = torch.linalg.vector_norm(v, dim=-2)
    eps = _eps(args[0])
    return _near("eigenvectors are not of length 1", norms, torch.ones_like(norms), eps) or _near(
        "A V differs from V W", a.to(v.dtype) @ v, v * w.unsqueeze(-2), eps
    )


_FACTORISATIONS: dict[str, Callable[..., str | None]] = {
    "geqrf": _geqrf,
    "linalg.eig": _eig,
    "linalg.eigh": _eigh,
    "linalg.qr": _qr,
    "linalg.svd": _svd,
    "qr": _qr,
    "svd": _old_svd,
}


def low_rank(subject: str, inputs: Inputs, output: Any, reference: Any) -> str | None:
    """Orthonormal factors; singular values near the CPU's; and where the input has a rank within reach, their product
    is the input. OpInfo passes the input as the product of two thin matrices."""
    args, kwargs = inputs
    u, s, v = map(_wide, output)
    a = _wide(args[0]) @ _wide(args[1]).mH
    within_reach = True
    if subject == "pca_lowrank":
        a = a - a.mean(-2, keepdim=True) if kwargs.get("center", True) else a
    elif kwargs.get("M") is not None:
        a, within_reach = a - _wide(kwargs["M"]), False
    eps = 10 * _eps(args[0])  # the random projection loses some digits
    off = _orthonormal("U", u, eps) or _orthonormal("V", v, eps)
    if off or not within_reach:
        return off
    return _near("U S Vᴴ differs from A", (u * s.unsqueeze(-2)) @ v.mH, a, eps)


# --- comparisons ------------------------------------------------------------------------------------------------------


def _kind(x: Any) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def _eps(t: Tensor) -> float:
    return torch.finfo(t.dtype).eps


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal, with NaN equal to NaN."""
    if a.shape != b.shape:
        return False
    equal = a == b
    return bool((equal | (a.isnan() & b.isnan())).all() if a.is_floating_point() else equal.all())


def _equal_all(output: Any, reference: Any) -> str | None:
    ours, theirs = pytree.tree_leaves(output), pytree.tree_leaves(reference)
    if len(ours) != len(theirs) or not all(_same(a, b) for a, b in zip(ours, theirs, strict=True)):
        return "differs from the reference, which is unique for these arguments"
    return None


def _near(complaint: str, ours: Tensor, theirs: Tensor, eps: float) -> str | None:
    """Relative to the largest element of each matrix of a batch, in roundings per row or column."""
    if theirs.numel() == 0:
        return None
    theirs = theirs.to(ours.dtype)
    dims = tuple(range(-min(2, theirs.dim()), 0))
    size = theirs.abs().amax(dims, keepdim=True) if dims else theirs.abs()
    count = max(theirs.shape[-2:]) if dims else 1
    room = ROUNDINGS * count * eps * size + torch.finfo(torch.float32).tiny
    off = (ours - theirs).abs()
    if bool((off <= room).all()):
        return None
    return f"{complaint}, by {float((off / room).nan_to_num(math.inf).max()):.3g} times what rounding explains"


def _orthonormal(name: str, q: Tensor, eps: float) -> str | None:
    unit = torch.eye(q.shape[-1], dtype=q.dtype).expand(*q.shape[:-2], -1, -1)
    return _near(f"{name} is not orthonormal", q.mH @ q, unit, eps)


CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        alpha_dropout,
        drawn_from_input,
        dropout,
        factorisation,
        low_rank,
        metadata_only,
        ordering,
        random,
        random_slope,
        unique,
    )
}
