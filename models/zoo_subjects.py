"""Subjects of the zoo: TYPE.TASK, tiny and made of a recipe."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.cases import NotBuildable, Options, Tier
from models import sources
from models.sources import Listed
from models.subjects import DECODES, Subject

if TYPE_CHECKING:
    import torch
    from torch import nn

    from models.zoo.recipe import Recipe

RANDOM_IN_TRAINING = re.compile(r".*(drop|jitter_noise|mask_(time|feature)_prob).*")
"""Fields of configs that make training random. They are 0 in a model that is trained, to compare two runs."""

LABELLED = frozenset({"causal-lm", "masked-lm"})
"""Tasks whose models are trained to predict their own input tokens."""


def listed(options: Options) -> Iterator[Listed]:
    """Each type with its main task; by name also with its others, as far as they have a class of their own."""
    from models.zoo import architectures

    smoke, pr = sources.tiers()["smoke"], sources.tiers()["pr"].values()
    for model_type, architecture in architectures.architectures().items():
        tasks = architectures.distinct_tasks(architecture) if options.subjects else (architecture.main_task,)
        for task in tasks:
            name = f"{model_type}.{task}"
            tier = Tier.SMOKE if name in smoke else Tier.PR if name in pr else Tier.NIGHTLY
            dynamic = Tier.SMOKE if tier is Tier.SMOKE else Tier.NIGHTLY
            more = Tier.PR if name in sources.tiers()["more"]["pr"] else Tier.NIGHTLY if tier is Tier.SMOKE else None
            yield Listed(name, tier, dynamic, more, task in DECODES, sources.decode_tier(name))


def subject(name: str, options: Options) -> Subject:
    """The subject of that name. Raises `NotBuildable` with the reason where there is no recipe for it, and `ValueError`
    where the installed transformers has no such type and task."""
    import transformers

    from models.zoo import catalogue

    model_type, _, task = name.rpartition(".")
    try:
        recipe = catalogue.recipe(model_type, task)
    except KeyError:
        raise ValueError(f"transformers {transformers.__version__} has no {name!r}") from None
    except catalogue.NotDerivable as error:
        raise NotBuildable(str(error)) from None
    return of_recipe(name, recipe)


def of_recipe(name: str, recipe: Recipe) -> Subject:
    """A subject whose model and inputs are those of `recipe`."""
    from models.zoo import recipe as recipes

    def build(dtype: torch.dtype, seed: int, training: bool) -> nn.Module:
        made = recipes.build(_without_dropout(recipe) if training else recipe, dtype=dtype, seed=seed)
        return made.train() if training else made.requires_grad_(False)

    def inputs(dtype: torch.dtype, seed: int, batch: int, length: int) -> dict[str, Any]:
        return recipes.inputs(recipe, batch=batch, length=length, seed=seed, dtype=dtype)

    return Subject(
        name=name,
        build=build,
        inputs=inputs,
        lengths=recipe.lengths,
        length_multiple=recipe.length_multiple,
        batched=recipe.batched,
        dims={
            argument: tuple(i for i, dim in enumerate(spec.shape) if isinstance(dim, str))
            for argument, spec in recipe.inputs.items()
            if any(isinstance(dim, str) for dim in spec.shape)
        },
        cache_argument=recipe.cache_argument,
        labels="input_ids" if recipe.task in LABELLED and "input_ids" in recipe.inputs else "",
        exact=by_eager_experts,
        script=None if recipe.builder else functools.partial(script, recipe),
        notes=f"without {', '.join(recipe.left_out)}" if recipe.left_out else "",
    )


def script(recipe: Recipe, dtype: torch.dtype) -> tuple[str, str]:
    """Statements and an expression for the model, which need transformers alone. Its weights are other random ones."""
    from models.zoo import recipe as recipes

    kind = recipes.model_class(recipe.model_type, recipe.class_name)
    statements = f"""
from transformers import CONFIG_MAPPING
from {kind.__module__} import {kind.__name__}
torch.manual_seed(0)
model = {kind.__name__}(CONFIG_MAPPING[{recipe.model_type!r}](**{recipe.config!r})).eval().requires_grad_(False)
for p in model.parameters():
    p.copy_(torch.randn(p.shape) * p.shape[-1] ** -0.5 if p.dim() > 1 else p + torch.randn(p.shape) / 10)
"""
    return statements.strip(), f"model.to({dtype})"


def by_eager_experts(module: nn.Module) -> nn.Module | None:
    """A copy that multiplies one expert after the other: the grouped product has no float64. None without experts.

    For a model or a part of one, which has no method for it: the choice is in the config that they share.
    """
    if not any(type(part).__name__.endswith("Experts") for part in module.modules()):
        return None
    made = copy.deepcopy(module)
    for part in made.modules():
        config: Any = getattr(part, "config", None)
        if hasattr(config, "_experts_implementation"):
            config._experts_implementation = "eager"
    return made


def _without_dropout(recipe: Recipe) -> Recipe:
    """The recipe with all that makes training random set to 0, in nested configs too."""
    from models.zoo import recipe as recipes

    def quiet(config: Any) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for field, value in vars(config).items():
            if isinstance(value, float) and RANDOM_IN_TRAINING.fullmatch(field):
                changed[field] = 0.0
            elif hasattr(value, "to_dict") and field in getattr(config, "sub_configs", {}):
                changed[field] = quiet(value)
        return changed

    return msgspec.structs.replace(recipe, config=_merged(recipe.config, quiet(recipes.config(recipe))))


def _merged(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    made = dict(config)
    for name, value in changes.items():
        made[name] = _merged(made.get(name) or {}, value) if isinstance(value, dict) else value
    return made
