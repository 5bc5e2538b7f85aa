"""Inputs of a model of transformers at its real size: guessed from its forward and config, tried, repaired.

As in the zoo, but the model is what it is: nothing is shrunk, and how long a forward takes does not matter.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from typing import Any

import msgspec
from torch import nn

from models.own.faults import raised
from models.subjects import Sizes
from models.zoo import layouts, repair, trial
from models.zoo import recipe as recipes
from models.zoo.facts import Facts
from models.zoo.layouts import Inputs
from models.zoo.recipe import Recipe

MAX_STARTS, MAX_TRIALS = 12, 8
MULTIPLES = (1, 8)
CACHES = ("past_key_values", "cache", "cache_params")


class NoInputs(ValueError):
    """No inputs were found with which the model runs; the message is its first error."""


def cache_argument(model: nn.Module) -> str | None:
    """The name of the cache in a model's forward; None where it takes none, or no tokens."""
    names = inspect.signature(model.forward).parameters
    writes = "input_ids" in names or "decoder_input_ids" in names
    return next((name for name in CACHES if name in names and writes), None)


def found(model: Any, model_type: str, task: str, sizes: Sizes) -> Recipe:
    """Specifications of inputs with which `model` runs at the first of `sizes`, and which dimensions really vary.

    Raises `NoInputs`.
    """
    parameters = {
        p.name: p.default is p.empty
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    blank = Recipe(model_type=model_type, task=task, class_name=type(model).__name__, config={}, inputs={})
    context = repair.Context(Facts(model.config), parameters)
    first: BaseException | None = None
    for start in _starts(model, parameters, context.facts):
        specs: Inputs | None = start
        seen: set[str] = set()
        for _ in range(MAX_TRIALS):
            if specs is None:
                break
            seen.add(str(specs))
            recipe = msgspec.structs.replace(blank, inputs=specs)
            try:
                trial.run(model, recipe, sizes.batch, sizes.length)
            except Exception as error:  # whatever a model raises: the next guess may do
                first = first or error
                specs = next((s for s in repair.repairs(error, specs, context) if str(s) not in seen), None)
                continue
            return _with_what_varies(model, recipe, sizes)
    raise NoInputs(raised(first) if first else "its forward takes nothing that has a known name") from first


def _starts(model: Any, parameters: Mapping[str, bool], facts: Facts) -> itertools.islice[Inputs]:
    main = getattr(model, "main_input_name", None) or ()
    encoder_decoder = bool(getattr(model.config, "is_encoder_decoder", False))
    named = layouts.wanted(parameters, (main,) if isinstance(main, str) else main, encoder_decoder=encoder_decoder)
    along = layouts.companions(named, parameters)
    choices = [[*named, *extra] for extra in ([along, []] if along else [[]])]
    combinations = (layouts.combinations(names, facts, parameters) for names in choices)
    return itertools.islice(itertools.chain.from_iterable(combinations), MAX_STARTS)


def _with_what_varies(model: Any, recipe: Recipe, sizes: Sizes) -> Recipe:
    """With numbers in place of symbolic sizes at which the model does not run after all."""
    free = recipes.dims(recipe.inputs)

    def runs(batch: int, length: int) -> bool:
        try:
            trial.run(model, recipe, batch, length)
        except Exception:  # any error says the same: not at this size
            return False
        return True

    multiple = 1
    if "length" in free:
        lengths = (max(sizes.lengths), min(sizes.lengths))
        fitting = (m for m in MULTIPLES if all(runs(sizes.batch, -(-n // m) * m) for n in lengths))
        multiple = next(fitting, 0)
        if not multiple:
            recipe, free, multiple = _frozen(recipe, "length", sizes.length), free - {"length"}, 1
    if "batch" in free and not all(runs(n, sizes.length) for n in (max(sizes.batches), 1)):
        recipe, free = _frozen(recipe, "batch", sizes.batch), free - {"batch"}
    return msgspec.structs.replace(recipe, lengths="length" in free, batched="batch" in free, length_multiple=multiple)


def _frozen(recipe: Recipe, name: str, number: int) -> Recipe:
    def fixed(dim: int | str) -> int | str:
        return recipes.size(dim, number, number) if isinstance(dim, str) and name in dim else dim

    specs = {k: msgspec.structs.replace(s, shape=tuple(map(fixed, s.shape))) for k, s in recipe.inputs.items()}
    return msgspec.structs.replace(recipe, inputs=specs)
