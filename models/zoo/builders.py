"""The few models and arguments that no table of sizes can describe, by name. Used by exceptions.toml only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

    from models.zoo.recipe import Recipe

ModelBuilder = Callable[["Recipe"], "nn.Module"]
ArgumentBuilder = Callable[["Recipe", int, int, "torch.Generator", "torch.dtype"], Any]


def _shared_kv_states(
    recipe: Recipe, batch: int, length: int, generator: torch.Generator, dtype: torch.dtype
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of the last layer of each kind of attention, as the model gives them that is assisted."""
    import torch

    from models.zoo import recipe as recipes

    text = recipes.config(recipe).get_text_config()
    states = {}
    for index, kind in enumerate(text.layer_types):
        layer = text.per_layer_config[index]
        shape = (batch, layer.num_key_value_heads, length, layer.head_dim)
        states[kind] = (
            torch.randn(shape, generator=generator).to(dtype),
            torch.randn(shape, generator=generator).to(dtype),
        )
    return states


def _pooled_patches(
    recipe: Recipe, batch: int, length: int, generator: torch.Generator, dtype: torch.dtype
) -> torch.Tensor:
    """Which patches, counted through the whole batch, each token of an image is made of: two by two of four by four."""
    import torch

    return torch.arange(16 * batch).view(batch, 2, 2, 2, 2).transpose(2, 3).reshape(4 * batch, 4)


ARGUMENTS: dict[str, ArgumentBuilder] = {"shared_kv_states": _shared_kv_states, "pooled_patches": _pooled_patches}


def _whole(recipe: Recipe) -> nn.Module:
    from models.zoo import recipe as recipes

    return recipes.model_class(recipe.model_type, recipe.class_name)(recipes.config(recipe))


def _part(path: str, recipe: Recipe) -> nn.Module:
    """A submodule, where the whole has no forward."""
    return _whole(recipe).get_submodule(path)


def _method(name: str, recipe: Recipe) -> nn.Module:
    """The whole, with a method as its forward."""
    model = _whole(recipe)
    cls = type(model)
    model.__class__ = type(cls.__name__, (cls,), {"forward": getattr(cls, name), "__module__": cls.__module__})
    return model


def _forgetful(names: str, recipe: Recipe) -> nn.Module:
    """The whole, with caches that keep nothing: what it returns must not depend on what it was called with before."""
    model = _whole(recipe)
    for name in names.split(","):
        cache = getattr(model, name)
        cls = type(cache)
        cache.__class__ = type(cls.__name__, (cls,), {"put": _keep_nothing, "__module__": cls.__module__})
    return model


def _keep_nothing(cache: Any, key: Any, value: Any) -> None:
    pass


_KINDS: dict[str, Callable[[str, Recipe], nn.Module]] = {"part": _part, "method": _method, "forgetful": _forgetful}


def model(name: str) -> ModelBuilder:
    """The function that makes a model: `part:PATH` is a submodule, `method:NAME` has a method as its forward,
    `forgetful:NAME,...` has caches of these names that keep nothing.

    Raises KeyError naming it where there is none.
    """
    kind, _, which = name.partition(":")
    if kind not in _KINDS or not which:
        raise KeyError(name)
    return functools.partial(_KINDS[kind], which)


def argument(name: str) -> ArgumentBuilder:
    """The function that makes an argument. Raises KeyError naming it where there is none."""
    return ARGUMENTS[name]
