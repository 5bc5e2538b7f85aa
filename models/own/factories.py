"""Models that a function of the user's makes, with example inputs; other sizes are made of the examples."""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conformance.cases import UserFault
from models.own import namespace
from models.own.declarations import Entry, shown
from models.own.faults import fault, raised

DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
DROPPING = (nn.MultiheadAttention, nn.RNNBase)
"""Modules whose `dropout` is a probability."""


# --- loading ----------------------------------------------------------------------------------------------------------


def function(entry: Entry) -> Callable[[], Any]:
    """The function that `factory` names. Within `namespace.of_user`. Raises `UserFault`."""
    place, _, name = entry.factory.rpartition(":")
    try:
        module = _of_file(Path(place)) if place.endswith(".py") else _of_name(entry, place)
    except UserFault:
        raise
    except BaseException as error:  # whatever the user's module raises, SystemExit too
        fault(entry, "factory", f"{_said(place)} cannot be imported: {raised(error)}", error)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            meant = difflib.get_close_matches(part, vars(found) if hasattr(found, "__dict__") else (), n=1)
            hint = f"; did you mean {meant[0]!r}?" if meant else ""
            fault(entry, "factory", f"{_said(place)} has no {name!r}{hint}")
        found = getattr(found, part)
    if not callable(found):
        fault(entry, "factory", f"{name!r} of {_said(place)} is a {type(found).__name__}, and no function")
    return found


def _said(place: str) -> str:
    return shown(Path(place)) if place.endswith(".py") else place


def _of_name(entry: Entry, name: str) -> Any:
    blocking = namespace.in_the_way(name, entry.path)
    if blocking:
        fault(entry, "factory", f"a package of that name is loaded already ({blocking}): give path/to/file.py:function")
    return importlib.import_module(name)


def _of_file(path: Path) -> Any:
    """The module of a file, imported once, under its own name unless that is taken: Dynamo looks modules up by name."""
    name = path.stem
    if not _is(name, path) and (name in sys.modules or importlib.util.find_spec(name) is not None):
        name = f"_own_{path.stem}"
    if _is(name, path):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))  # as where the file is run; what surrounds this takes it away again
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is(name: str, path: Path) -> bool:
    return getattr(sys.modules.get(name), "__file__", None) == str(path)


# --- making -----------------------------------------------------------------------------------------------------------


def made(entry: Entry, seed: int) -> tuple[nn.Module, dict[str, Any]]:
    """What the factory returns: the module, and the example inputs by name. Raises `UserFault`."""
    with namespace.of_user(entry.path), torch.random.fork_rng(devices=[]):
        make = function(entry)
        torch.manual_seed(seed)
        try:
            returned = make()
        except BaseException as error:
            fault(entry, "factory", f"raised {raised(error)}", error)
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[0], nn.Module):
        was = ", ".join(type(each).__name__ for each in returned) if isinstance(returned, tuple) else ""
        kind = f"({was})" if was else type(returned).__name__
        fault(entry, "factory", f"returned {kind}; it must return (module, inputs), inputs a dict or a tuple")
    module, inputs = returned
    return module, _by_name(entry, module, inputs)


def _by_name(entry: Entry, module: nn.Module, inputs: Any) -> dict[str, Any]:
    if isinstance(inputs, Mapping) and all(isinstance(name, str) for name in inputs):
        return dict(inputs)
    given = inputs if isinstance(inputs, tuple | list) else (inputs,) if isinstance(inputs, Tensor) else None
    if given is None:
        kind = type(inputs).__name__
        fault(entry, "factory", f"returned a {kind} for inputs; they must be a dict of arguments by name or a tuple")
    signature = inspect.signature(module.forward)
    try:
        bound = signature.bind(*given).arguments
    except TypeError as error:
        fault(entry, "factory", f"its inputs do not fit forward{signature}: {error}")
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    if any(signature.parameters[name].kind in unnamed for name in bound):
        fault(
            entry, "factory", f"inputs are passed by name, which forward{signature} does not take; name its parameters"
        )
    return dict(bound)


def quiet(module: nn.Module) -> None:
    """Makes training repeatable: all dropout is 0, as far as modules of torch say it."""
    for each in module.modules():
        if isinstance(each, DROPOUTS):
            each.p = 0.0
        elif isinstance(each, DROPPING):
            each.dropout = 0.0


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# --- inputs -----------------------------------------------------------------------------------------------------------


def example_size(entry: Entry, inputs: Mapping[str, Any], name: str) -> int | None:
    """`batch` or `length` of the example inputs; None where no dimension is declared to be it. Raises `UserFault`."""
    found: dict[str, int] = {}
    for argument, dims in entry.dynamic.items():
        if argument not in inputs:
            meant = difflib.get_close_matches(argument, inputs, n=1)
            hint = f"did you mean {meant[0]!r}? " if meant else ""
            fault(entry, "dynamic", f"there is no input {argument!r}; {hint}the factory returns {', '.join(inputs)}")
        value = inputs[argument]
        if not isinstance(value, Tensor):
            fault(entry, "dynamic", f"{argument} is a {type(value).__name__}; only tensors have dimensions that vary")
        if name not in dims:
            continue
        if dims[name] >= value.dim():
            had = f"{value.dim()} dimensions {tuple(value.shape)}, numbered from 0"
            fault(entry, "dynamic", f"`{argument}.{name} = {dims[name]}`: {argument} has {had}")
        found[argument] = value.shape[dims[name]]
    if len(set(found.values())) > 1:
        said = ", ".join(f"{size} in {argument}" for argument, size in found.items())
        fault(entry, "dynamic", f"`{name}` is {said}; it must be one size in all of them")
    size = next(iter(found.values()), None)
    if size == 0:
        fault(entry, "dynamic", f"`{name}` is 0 in the example inputs; other sizes cannot be made of nothing")
    return size


def resized(entry: Entry, inputs: Mapping[str, Any], sizes: Mapping[str, int], dtype: torch.dtype) -> dict[str, Any]:
    """The example inputs at other sizes, by repeating or cutting: what they hold stays valid. Floats in `dtype`."""

    def one(argument: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        for name, dimension in entry.dynamic.get(argument, {}).items():
            index = torch.arange(sizes[name]) % value.shape[dimension]
            value = value.index_select(dimension, index)
        value = value.detach().clone()
        return value.to(dtype) if value.is_floating_point() else value

    return {argument: one(argument, value) for argument, value in inputs.items()}
