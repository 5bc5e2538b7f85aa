"""Runs a tiny model and says whether its recipe holds."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from models.zoo import recipe as recipes
from models.zoo.recipe import Recipe

if TYPE_CHECKING:
    import torch
    from torch import nn

    from conformance.tiebreaks import TieBreaking

SECONDS = 1.0
"""How long a forward may take."""

LONGEST = 65
"""Tokens of a call in which ties are looked for: the more numbers, the more of them are equal."""

ROUNDING = 1e-3
"""Of the size of a result: what two orders of the same additions may be apart by."""


class Rejected(Exception):
    """A model ran, but what it returned cannot be a reference. The message says why."""


class Idle(Rejected):
    """The outputs do not depend on some inputs."""

    def __init__(self, inputs: Sequence[str]) -> None:
        super().__init__(f"the outputs do not depend on {', '.join(inputs)}")
        self.inputs = tuple(inputs)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in what a model returned, in a stable order."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from tensors(v)
    elif isinstance(value, list | tuple):
        for v in value:
            yield from tensors(v)


def run(model: nn.Module, recipe: Recipe, batch: int, length: int) -> Any:
    """What the model returns for the recipe's inputs. Raises whatever the model raises."""
    import torch

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # some models draw noise in evaluation mode, too
        return model(**recipes.inputs(recipe, batch=batch, length=length))


def forward(model: nn.Module, recipe: Recipe, batch: int, length: int) -> list[torch.Tensor]:
    """The tensors that the model returns, in a stable order."""
    return list(tensors(run(model, recipe, batch, length)))


def results(outputs: Any) -> list[torch.Tensor]:
    """The tensors that a model is run for: its logits, or else its last hidden state, or else all that it returns."""
    for name in ("logits", "last_hidden_state"):
        if isinstance(outputs, dict) and outputs.get(name) is not None:
            return list(tensors(outputs[name]))
    return list(tensors(outputs))


def check(model: nn.Module, recipe: Recipe, batch: int, length: int) -> bool:
    """Whether all that the model returns is finite. Raises Rejected where it returns nothing, NaN, nothing but zeros,
    or not the same bits twice, or takes too long; and whatever the model raises."""
    import torch

    first = forward(model, recipe, batch, length)
    started = time.process_time()
    second = forward(model, recipe, batch, length)
    seconds = time.process_time() - started
    if not first:
        raise Rejected("the model returns no tensor")
    if any(bool(torch.isnan(t).any()) for t in first if t.is_floating_point()):
        raise Rejected("the model returns NaN")
    if len(first) != len(second) or not all(map(torch.equal, first, second)):
        raise Rejected("the model does not return the same twice")
    if not any(bool(t.any()) for t in first):
        raise Rejected("the model returns nothing but zeros")
    if seconds > SECONDS:
        raise Rejected(f"a forward takes {seconds:.1f} s")
    return all(bool(torch.isfinite(t).all()) for t in first if t.is_floating_point())


def idle_inputs(model: nn.Module, recipe: Recipe) -> list[str]:
    """Inputs of which the outputs do not depend: floats and ids that can be drawn anew without any change."""
    import torch

    from models.zoo.recipe import InputSpec

    before = results(run(model, recipe, 2, 16))
    idle = []
    for name, spec in recipe.inputs.items():
        if spec.kind not in ("floats", "ids") or name.endswith("token_type_ids") or 0 in spec.shape:
            continue
        other = InputSpec(spec.kind, spec.shape, spec.dtype, spec.low, spec.high, spec.runs, seed=1)
        changed = msgspec.structs.replace(recipe, inputs={**recipe.inputs, name: other})
        after = results(run(model, changed, 2, 16))
        if len(after) == len(before) and all(map(torch.equal, before, after)):
            idle.append(name)
    return idle


def decided_by_ties(model: nn.Module, recipe: Recipe, batch: int, length: int) -> str:
    """The first op, and its module, whose choice among equal numbers changes what the model returns by more than
    rounding; empty where none does, or the model cannot be run like this."""
    from conformance import tiebreaks

    plain: list[torch.Tensor] = []

    def differs(mode: TieBreaking) -> bool:
        with mode:
            other = forward(model, recipe, batch, length)
        if not mode.sites:
            return False
        plain[:] = plain or forward(model, recipe, batch, length)
        return not (len(plain) == len(other) and all(map(_alike, plain, other)))

    try:
        return str(tiebreaks.decisive(differs, tiebreaks.Rule.HIGHEST) or "")
    except Exception:  # too long for it, or an operator that knows nothing of such a mode
        return ""


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two results are the same but for rounding."""
    import torch

    if a.shape != b.shape or not a.is_floating_point():
        return torch.equal(a, b)
    finite = a.isfinite()
    scale = float(a[finite].double().square().mean().sqrt()) if bool(finite.any()) else 0.0
    return torch.allclose(a.double(), b.double(), rtol=ROUNDING, atol=ROUNDING * scale, equal_nan=True)


def settle(model: nn.Module, recipe: Recipe, idle: Container[str] = ()) -> Recipe:
    """The recipe with what only running shows: which sizes really vary. `idle` are inputs that need not matter.

    Raises as `check` does, and Rejected where an input does not matter.
    """
    finite = check(model, recipe, 2, 16)
    unused = tuple(idle_inputs(model, recipe))
    if any(name not in idle for name in unused):
        raise Idle(unused)
    recipe = msgspec.structs.replace(recipe, finite=finite, idle=unused)
    free = recipes.dims(recipe.inputs)
    multiple = 1
    if "length" in free:
        if not _runs(model, recipe, 2, 24):
            recipe, free = _freeze(recipe, "length", 16), free - {"length"}
        elif not (_runs(model, recipe, 2, 13) and _runs(model, recipe, 2, 33)):
            multiple = 8
    if "batch" in free and not (_runs(model, recipe, 1, 16) and _runs(model, recipe, 3, 16)):
        recipe, free = _freeze(recipe, "batch", 2), free - {"batch"}
    return msgspec.structs.replace(
        recipe,
        ties=decided_by_ties(model, recipe, 2, LONGEST if "length" in free else 16),
        lengths="length" in free,
        length_multiple=multiple,
        batched="batch" in free,
        parameters=sum(p.numel() for p in model.parameters()),
    )


def _runs(model: nn.Module, recipe: Recipe, batch: int, length: int) -> bool:
    try:
        outputs = forward(model, recipe, batch, length)
    except Exception:  # any error says the same: not at this size
        return False
    return not any(bool((t != t).any()) for t in outputs if t.is_floating_point())


def _freeze(recipe: Recipe, name: str, number: int) -> Recipe:
    """With a number in place of a symbolic size."""

    def fixed(dim: int | str) -> int | str:
        return recipes.size(dim, number, number) if isinstance(dim, str) and name in dim else dim

    inputs = {
        k: msgspec.structs.replace(spec, shape=tuple(map(fixed, spec.shape))) for k, spec in recipe.inputs.items()
    }
    return msgspec.structs.replace(recipe, inputs=inputs)
