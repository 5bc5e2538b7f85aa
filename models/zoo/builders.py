"""The few models and arguments that no table of sizes can describe, by name. Used by exceptions.toml only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

    from models.zoo.recipe import Recipe

ModelBuilder = Callable[["Recipe"], "nn.Module"]
ArgumentBuilder = Callable[["Recipe", int, int, "torch.Generator", "torch.dtype"], Any]

MODELS: dict[str, ModelBuilder] = {}
ARGUMENTS: dict[str, ArgumentBuilder] = {}


def model(name: str) -> ModelBuilder:
    """The function that makes a model. Raises KeyError naming it where there is none."""
    return MODELS[name]


def argument(name: str) -> ArgumentBuilder:
    """The function that makes an argument. Raises KeyError naming it where there is none."""
    return ARGUMENTS[name]
