"""Values that an op accepts: indices within what they index, numbers within its domain.

For the ops of OpInfo their own domains hold. What else is needed is in tables here, by operator and argument. All
random numbers are of the default generator, which the caller seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from op_coverage import upstream
from op_coverage.traced import like
from op_coverage.traced.calls import Call, Parameter, Shape, shape

NARROWEST = 1e-2
"""Distance of values from the ends of an open domain, and from zero where that is excluded."""

LARGEST_INTEGER = 9


@dataclass(frozen=True)
class Domain:
    """Where values may lie: numbers between `low` and `high`, or integers below `below`, or both None: any."""

    low: float | None = None
    high: float | None = None
    nonzero: bool = False
    below: int | None = None  # indices; distinct where there are no more of them than that
    along: int | None = None  # distinct along this dimension alone
    ascending: bool = False  # along the last dimension


Bound = Mapping[str, Any]
"""Arguments by name; for tensors their `Shape`."""


def _size_along_dim(bound: Bound) -> int:
    sizes = bound["self"].sizes or (1,)
    return sizes[bound["dim"]]


def _elements_of_plane(bound: Bound) -> int:
    rows, columns = bound["self"].sizes[-2:]
    return rows * columns


INDICES: Mapping[str, tuple[str, Callable[[Bound], int]]] = {
    "embedding": ("indices", lambda bound: bound["weight"].sizes[0]),
    "embedding_dense_backward": ("indices", lambda bound: bound["num_weights"]),
    "_embedding_bag": ("indices", lambda bound: bound["weight"].sizes[0]),
    "gather": ("index", _size_along_dim),
    "scatter": ("index", _size_along_dim),
    "scatter_add": ("index", _size_along_dim),
    "scatter_reduce": ("index", _size_along_dim),
    "index_select": ("index", _size_along_dim),
    "index_add": ("index", _size_along_dim),
    "index_copy": ("index", _size_along_dim),
    "index_fill": ("index", _size_along_dim),
    "take": ("index", lambda bound: _numel(bound["self"])),
    "put": ("index", lambda bound: _numel(bound["self"])),
    "nll_loss_forward": ("target", lambda bound: bound["self"].sizes[-1]),
    "nll_loss_backward": ("target", lambda bound: bound["self"].sizes[-1]),
    "nll_loss2d_forward": ("target", lambda bound: bound["self"].sizes[1]),
    "nll_loss2d_backward": ("target", lambda bound: bound["self"].sizes[1]),
    "max_pool2d_with_indices_backward": ("indices", _elements_of_plane),
}
"""Operator -> the argument that holds indices, and how many there are to choose from."""

ADVANCED = frozenset({"index", "_unsafe_index", "index_put", "_unsafe_index_put", "_unsafe_masked_index"})
"""Operators whose `indices` are a list, an entry for each dimension of `self` (a mask stands for as many as it has)."""

POSITIVE, PROBABILITY = Domain(low=0.0), Domain(low=0.0, high=1.0)

DOMAINS: Mapping[tuple[str, str], Domain] = {
    ("pow", "self"): POSITIVE,
    ("bernoulli", "self"): PROBABILITY,
    ("multinomial", "self"): POSITIVE,
    ("_native_batch_norm_legit_no_training", "running_var"): POSITIVE,
    ("_native_batch_norm_legit_functional", "running_var"): POSITIVE,
    ("_native_batch_norm_legit", "running_var"): POSITIVE,
    ("native_batch_norm", "running_var"): POSITIVE,
    ("native_layer_norm_backward", "rstd"): POSITIVE,
    ("native_group_norm_backward", "rstd"): POSITIVE,
    ("native_batch_norm_backward", "running_var"): POSITIVE,
    ("native_batch_norm_backward", "save_invstd"): POSITIVE,
    ("bucketize", "boundaries"): Domain(ascending=True),
    ("searchsorted", "sorted_sequence"): Domain(ascending=True),
    ("addcdiv", "tensor2"): Domain(nonzero=True),
    ("reciprocal", "self"): Domain(nonzero=True),
}
"""(operator, argument) -> domain, where OpInfo does not have it."""


def make(call: Call, symbols: Mapping[str, int]) -> list[Any]:
    """Values of the parameters of a call with these values of its symbols.

    Raises `SignatureError` for symbols that do not fit it and `ValueError` where it cannot be bound to its op.
    """
    names = upstream.argument_names(call.signature.op)
    shapes = [shape(p.content, symbols) if p.kind == "tensor" else None for p in call.parameters]
    args, kwargs = call.rebuilt([*shapes])
    bound = {**dict(zip(names, args, strict=False)), **kwargs}
    operator = like.operator(call.signature.op)
    made: list[Any] = []
    for parameter, each in zip(call.parameters, shapes, strict=True):
        if each is not None:
            argument = names[parameter.argument] if isinstance(parameter.argument, int) else parameter.argument
            made.append(tensor(each, domain(operator, argument, parameter, bound)))
        else:
            made.append(_PLAIN[parameter.kind](parameter.content, symbols))
    return made


def _dtype(name: str, symbols: Mapping[str, int]) -> torch.dtype:
    return getattr(torch, name)


def _device(name: str, symbols: Mapping[str, int]) -> torch.device:
    return torch.device("cpu")  # the engine moves it, with the tensors, to the device


def _integer(size: Any, symbols: Mapping[str, int]) -> int:
    from conformance.signatures import evaluate

    return evaluate(size, symbols)


_PLAIN: Mapping[str, Callable[[Any, Mapping[str, int]], Any]] = {
    "dtype": _dtype,
    "device": _device,
    "size": _integer,
}


def domain(operator: str, argument: str, parameter: Parameter, bound: Bound) -> Domain:
    """Where the values of one tensor may lie."""
    if operator in ADVANCED and argument == "indices" and parameter.place is not None:
        return Domain(below=_indexed_size(bound, parameter.place))
    if operator in INDICES and INDICES[operator][0] == argument:
        return Domain(below=INDICES[operator][1](bound), along=bound.get("dim"))
    return DOMAINS.get((operator, argument)) or _of_op_info(operator, argument)


def _indexed_size(bound: Bound, place: int) -> int:
    dimension = 0
    for index in bound["indices"][:place]:
        is_mask = isinstance(index, Shape) and index.dtype in ("bool", "uint8")
        dimension += len(index.sizes) if is_mask else 1
    return bound["self"].sizes[dimension]


def _of_op_info(operator: str, argument: str) -> Domain:
    info = like.op_info(operator)
    if info is None:
        return Domain()
    low, high = upstream.domain(info, first=argument in ("self", "input"))
    return Domain(low, high, nonzero=upstream.excludes_zero(info) and argument == "other")


def _numel(t: Shape) -> int:
    count = 1
    for size in t.sizes:
        count *= size
    return count


# --- tensors ----------------------------------------------------------------------------------------------------------


def tensor(wanted: Shape, within: Domain) -> Tensor:
    """A tensor of that shape with random values of that domain. Memory between its elements holds such values too."""
    dtype: torch.dtype = getattr(torch, wanted.dtype)
    overlaps = wanted.strides is not None and wanted.memory - wanted.offset < _numel(wanted)
    if wanted.strides is None or overlaps or within.ascending or within.below is not None:
        plain = _values(wanted.sizes, dtype, within)
        if wanted.strides is None and not wanted.offset:
            return plain
        memory = torch.zeros(wanted.memory, dtype=dtype)
        made = memory.as_strided(wanted.sizes, wanted.strides or plain.stride(), wanted.offset)
        if not overlaps:
            return made.copy_(plain)
        memory.copy_(_values((wanted.memory,), dtype, within))
        return made
    memory = _values((wanted.memory,), dtype, within)
    return memory.as_strided(wanted.sizes, wanted.strides, wanted.offset)


def _values(sizes: tuple[int, ...], dtype: torch.dtype, within: Domain) -> Tensor:
    if dtype is torch.bool:
        return torch.rand(sizes) < 0.5
    if within.below is not None:
        return _indices(sizes, within.below, within.along).to(dtype)
    if not (dtype.is_floating_point or dtype.is_complex):
        made = torch.randint(1, LARGEST_INTEGER + 1, sizes).to(dtype)
    elif dtype.is_complex:
        return torch.randn(sizes, dtype=dtype if dtype is not torch.complex32 else torch.complex64).to(dtype)
    else:
        made = _reals(sizes, within).to(dtype)
    return made.sort(-1).values if within.ascending and made.dim() else made


def _indices(sizes: tuple[int, ...], below: int, along: int | None) -> Tensor:
    """Distinct where they can be: a place that is written twice may keep either value."""
    if along is not None and -len(sizes) <= along < len(sizes) and sizes[along] <= below:
        places = [below if d == along % len(sizes) else n for d, n in enumerate(sizes)]
        return torch.rand(places).argsort(along).narrow(along, 0, sizes[along])
    count = Shape("int64", sizes, None, 0).memory
    distinct = count <= below
    drawn = torch.randperm(below)[:count] if distinct else torch.randint(0, max(below, 1), (count,))
    return drawn.reshape(sizes)


def _reals(sizes: tuple[int, ...], within: Domain) -> Tensor:
    """Normal numbers; where there is a domain, uniform ones in it, or in the part of it that is within 2 of its end."""
    if within.low is None and within.high is None:
        made = torch.randn(sizes)
    else:
        low = within.low if within.low is not None else float(within.high or 0.0) - 2.0
        high = within.high if within.high is not None else low + 2.0
        made = low + NARROWEST + torch.rand(sizes) * (high - low - 2 * NARROWEST)
    if within.nonzero:
        made = made.sign().where(made != 0, 1.0) * (made.abs() + NARROWEST)
    return made
