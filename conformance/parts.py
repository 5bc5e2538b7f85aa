"""The modules that a model is made of, and what each of them gets when the model is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from conformance import trees

Call = tuple[tuple[Any, ...], dict[str, Any]]

PLAIN = (Tensor, bool, int, float, complex, str, bytes, torch.dtype, torch.device, slice, type(None), type(Ellipsis))


def recorded(module: nn.Module, call: Callable[[], Any]) -> dict[str, Call]:
    """Path -> copies of the inputs of each part of `module` at its first run within `call()`, in running order.

    The module itself has the path "". An argument that has a state of its own (a cache) is left out: None is put in its
    place, which parts can do without. Raises whatever the call raises.
    """
    return {name: calls[0] for name, calls in recorded_ways(module, call).items()}


def recorded_ways(module: nn.Module, call: Callable[[], Any]) -> dict[str, list[Call]]:
    """As `recorded`, and after the first run of each part the first with arguments of other names: a model that is
    called to encode is then called to decode. Raises whatever the call raises."""
    seen: dict[str, dict[tuple[Any, ...], Call]] = {}
    handles = [
        part.register_forward_pre_hook(_recorder(name, seen), with_kwargs=True) for name, part in module.named_modules()
    ]
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()
    return {name: list(calls.values()) for name, calls in seen.items()}


def _recorder(name: str, seen: dict[str, dict[tuple[Any, ...], Call]]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        way = len(args), *sorted(kwargs)
        if way not in seen.setdefault(name, {}):
            seen[name][way] = trees.map_leaves(args, _kept), trees.map_leaves(kwargs, _kept)

    return hook


def _kept(_path: str, leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.detach().clone()
    return leaf if isinstance(leaf, PLAIN) else None


def below(path: str, calls: Mapping[str, Any]) -> list[str]:
    """The called parts directly below one, through containers that are never called themselves, in running order."""
    prefix = f"{path}." if path else ""
    inside = [name for name in calls if name and name != path and name.startswith(prefix)]
    return [name for name in inside if not any(name.startswith(f"{other}.") for other in inside if other != name)]
