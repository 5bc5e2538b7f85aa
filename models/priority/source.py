"""Subjects of the priority list, under the prefix `priority/`; see `models.sources.Source`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator

import msgspec

from conformance.cases import NotBuildable, Options, Tier
from models import sources
from models.priority import entries
from models.sources import Listed
from models.subjects import DECODES, Subject

PREFIX = "priority/"
WRITES = DECODES | {"masked-lm"}
"""Tasks whose logits are of tokens."""


def listed(options: Options) -> Iterator[Listed]:
    """All of them, in the pr tier."""
    for name, entry in entries.entries().items():
        yield Listed(
            PREFIX + name, Tier.PR, decodes=entry.task in DECODES, decode_tier=sources.decode_tier(PREFIX + name)
        )


def subject(name: str, options: Options) -> Subject:
    """The subject of that name. Raises `NotBuildable` where the installed transformers lacks its architecture, and
    `ValueError` where there is no such model."""
    import transformers

    from models import measures, zoo_subjects
    from models.zoo import recipe as recipes

    entry = entries.entries().get(name.removeprefix(PREFIX))
    if entry is None:
        raise ValueError(f"no priority model {name!r}: there are {', '.join(entries.entries())}")
    try:
        recipe = entries.recipe(entry)
    except KeyError as error:
        raise NotBuildable(f"transformers {transformers.__version__}: {error.args[0]}") from None
    if entry.task in DECODES:
        parameters = inspect.signature(recipes.model_class(recipe.model_type, recipe.class_name).forward).parameters
        cache = next((each for each in entries.CACHES if each in parameters), None)
        recipe = msgspec.structs.replace(recipe, cache_argument=cache)
    made = zoo_subjects.of_recipe(name, recipe)

    sizes = entries.shapes()[entry.shapes].all_sizes()
    measure = measures.of_forward if entry.task in WRITES else None
    return dataclasses.replace(made, sizes=sizes, measure=measure, notes=f"{entry.of}, cut")
