"""Which of equal numbers an op takes, where PyTorch leaves it open: the same code run with another choice.

`torch.topk` of numbers of which several are equal may return any of them, `torch.sort` may return them in any order,
and kernels differ in that. Here such ops answer by a given rule, and what they are called in is told, so that a result
that hangs on the choice can be recognised. An op that PyTorch documents to take the first (argmax, max, a stable sort)
has no choice and is left alone.

Numbers that are equal in theory may have been computed in two ways, and then only rounding decides which of them is
larger, in float64 another one than in 32 bits. Runs of the same code in several precisions are therefore made alike:
the later ones take, of numbers that are nearly equal, those that the first took.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from conformance.observe import TorchDispatchMode

_aten = torch.ops.aten

_SELECTING = frozenset({_aten.kthvalue.default, _aten.median.dim, _aten.nanmedian.dim, _aten.mode.default})
"""Ops that return one element of a row and its index."""

_ORDERING = frozenset({_aten.topk.default, _aten.sort.default, _aten.sort.stable})
"""Ops that return several in their order, and their indices."""

NEAR = 2.0**-21
"""How far two numbers that are equal in theory may be apart, relative to their size: a few roundings in 32 bits. As
many in 16 bits would make much equal that is not."""


class Rule(StrEnum):
    """Which of equal numbers is taken."""

    LOWEST = "lowest index first"
    HIGHEST = "highest index first"


class Site(NamedTuple):
    """A call of an op that had a choice among equal numbers."""

    op: str  # e.g. aten::topk
    path: str  # of the module that called it, in the model that ran; empty: of none but the model itself

    def __str__(self) -> str:
        return f"{self.op} in {self.path or 'the model itself'}"


Taken = Mapping[Site, Sequence[Tensor]]
"""The indices that the ops that order numbers returned, in the order of their calls."""


class TieBreaking(TorchDispatchMode):
    """Ops within that have a choice among equal numbers make it by `rule`. `sites` are those calls, in order. Without a
    rule they do what they do anyway.

    `first`: only so many of them do, and the later ones what they do anyway. `like`: what a run of the same code took,
    in another precision perhaps, which is taken again where it differs in nearly equal numbers only. `taken` is what
    this one took.
    """

    def __init__(self, rule: Rule | None, first: int | None = None, like: Taken | None = None) -> None:
        super().__init__()
        self.rule = rule
        self.first = first
        self.like = like
        self.sites: list[Site] = []
        self.taken: defaultdict[Site, list[Tensor]] = defaultdict(list)
        self._running: list[str] = []
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> TieBreaking:
        self._hooks.enter_context(_running_modules(self._running))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _ORDERING and func not in _SELECTING:
            return func(*args, **kwargs)
        site = Site(func._schema.name, self._running[-1] if self._running else "")
        answer = _answer(func, args, kwargs, self.rule) if self.rule is not None else None
        if answer is not None:
            self.sites.append(site)
        if answer is None or (self.first is not None and len(self.sites) > self.first):
            answer = func(*args, **kwargs)
        if func in _ORDERING:
            before = self.like.get(site, ()) if self.like is not None else ()
            number = len(self.taken[site])
            if number < len(before):
                answer = _in_place_of(answer, before[number], func, args, kwargs)
            self.taken[site].append(answer[1])
        return answer


class Alike:
    """Makes the modes of several runs of the same code: the first breaks ties by `rule`, the later ones as it did."""

    def __init__(self, rule: Rule | None) -> None:
        self.rule = rule
        self._taken: Taken | None = None

    def __call__(self) -> TieBreaking:
        mode = TieBreaking(self.rule, like=self._taken)
        if self._taken is None:
            self._taken = mode.taken
        return mode


def decisive(differs: Callable[[TieBreaking], bool], rule: Rule) -> Site | None:
    """The first call whose choice matters to a computation; None where the result is the same by `rule`.

    `differs(mode)` runs the computation in `mode` and says whether the result is another than without. It is called
    about as often as the number of calls that have a choice has binary digits. What it raises passes through.
    """
    mode = TieBreaking(rule)
    if not differs(mode):
        return None
    sites, without, including = mode.sites, 0, len(mode.sites)
    while including - without > 1:
        middle = (without + including) // 2
        mode = TieBreaking(rule, first=middle)
        if differs(mode):
            sites, including = mode.sites, middle
        else:
            without = middle
    return sites[including - 1] if sites else None


@contextlib.contextmanager
def _running_modules(stack: list[str]) -> Iterator[None]:
    """Keeps in `stack` the paths of the modules that are running, from the outermost on, whose path is empty."""
    names: dict[nn.Module, str] = {}

    def before(module: nn.Module, _args: Any) -> None:
        if not stack:
            names.update((part, name) for name, part in module.named_modules())
        stack.append(names.get(module, ""))

    def after(_module: nn.Module, _args: Any, _output: Any) -> None:
        if stack:
            stack.pop()

    handles = [register_module_forward_pre_hook(before), register_module_forward_hook(after, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        stack.clear()


# --- answers ----------------------------------------------------------------------------------------------------------


def _answer(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], rule: Rule) -> tuple[Tensor, Tensor] | None:
    """Values and indices by `rule`; None for an op that has no choice, or whose arguments leave it none."""
    if func is _aten.topk.default:
        return _topk(rule, *args, **kwargs)
    if func is _aten.sort.default:
        return _sort(rule, *args, **kwargs)
    if func is _aten.sort.stable and not kwargs.get("stable"):
        return _sort(rule, *args, **{name: value for name, value in kwargs.items() if name != "stable"})
    if func in _SELECTING:
        return _select(func, rule, *args, **kwargs)
    return None


def _in_place_of(
    answer: tuple[Tensor, Tensor], indices: Tensor, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Tensor, Tensor]:
    """`indices`, in rows where the numbers there are nearly those of the answer."""
    names = [argument.name for argument in func._schema.arguments if not argument.kwarg_only]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    x, dim = args[0], given.get("dim", -1)
    if x.dim() == 0 or indices.shape != answer[1].shape:
        return answer
    values = x.gather(dim, indices)
    ours, theirs = answer[0].double(), values.double()
    if not given.get("sorted", True):
        ours, theirs = ours.sort(dim=dim).values, theirs.sort(dim=dim).values
    near = (ours - theirs).abs() <= NEAR * torch.maximum(ours.abs(), theirs.abs())
    same = ((ours == theirs) | near).all(dim, keepdim=True)
    return torch.where(same, values, answer[0]), torch.where(same, indices, answer[1])


def _ordered(x: Tensor, dim: int, descending: bool, rule: Rule) -> tuple[Tensor, Tensor]:
    if rule is Rule.LOWEST:
        values, indices = x.sort(dim=dim, descending=descending, stable=True)
        return values, indices
    values, indices = x.flip(dim).sort(dim=dim, descending=descending, stable=True)
    return values, x.shape[dim] - 1 - indices


def _has_equal_neighbours(values: Tensor, dim: int) -> bool:
    size = values.shape[dim]
    return size > 1 and bool((values.narrow(dim, 1, size - 1) == values.narrow(dim, 0, size - 1)).any())


def _topk(
    rule: Rule, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor] | None:
    if x.dim() == 0:
        return None
    values, indices = _ordered(x, dim, largest, rule)
    size = x.shape[dim]
    if not 0 < k <= size or not _has_equal_neighbours(values.narrow(dim, 0, min(k + 1, size)), dim):
        return None
    return values.narrow(dim, 0, k).contiguous(), indices.narrow(dim, 0, k).contiguous()


def _sort(rule: Rule, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor] | None:
    if x.dim() == 0:
        return None
    values, indices = _ordered(x, dim, descending, rule)
    return (values, indices) if _has_equal_neighbours(values, dim) else None


def _select(func: Any, rule: Rule, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor] | None:
    """Of all the elements that equal the one that `func` returns, the first or the last."""
    if x.dim() == 0:
        return None
    values, indices = func(x, *args, **kwargs)
    named = dict(zip((a.name for a in func._schema.arguments), (x, *args), strict=False)) | kwargs
    dim, keepdim = named.get("dim", -1), named.get("keepdim", False)
    equal = x == (values if keepdim else values.unsqueeze(dim))
    if not bool((equal.sum(dim) > 1).any()):
        return None
    at = equal.to(torch.uint8)
    found = at.argmax(dim, keepdim=keepdim) if rule is Rule.LOWEST else None
    if found is None:
        found = x.shape[dim] - 1 - at.flip(dim).argmax(dim, keepdim=keepdim)
    return values, torch.where(equal.any(dim, keepdim=keepdim), found, indices)  # a NaN equals nothing
