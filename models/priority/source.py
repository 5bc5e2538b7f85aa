"""Subjects of the priority list, under the prefix `priority/`; see `models.sources.Source`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.cases import NotBuildable, Options, Tier
from models.priority import entries
from models.sources import Listed
from models.subjects import Subject

if TYPE_CHECKING:
    import torch
    from torch import nn

PREFIX = "priority/"
DECODES = "causal-lm"
WRITES = frozenset({DECODES, "masked-lm", "seq2seq-lm", "speech-seq2seq", "image-text-to-text", "multimodal-lm"})
"""Tasks whose logits are of tokens."""


def listed(options: Options) -> Iterator[Listed]:
    """All of them, in the pr tier."""
    for name, entry in entries.entries().items():
        yield Listed(PREFIX + name, Tier.PR, entry.task == DECODES, Tier.PR)


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
    if entry.task == DECODES:
        parameters = inspect.signature(recipes.model_class(recipe.model_type, recipe.class_name).forward).parameters
        cache = next((each for each in entries.CACHES if each in parameters), None)
        recipe = msgspec.structs.replace(recipe, cache_argument=cache)
    made = zoo_subjects.of_recipe(name, recipe)

    def build(dtype: torch.dtype, seed: int, training: bool) -> nn.Module:
        return with_small_tied_embeddings(made.build(dtype, seed, training))

    sizes = entries.shapes()[entry.shapes].all_sizes()
    measure = measures.of_forward if entry.task in WRITES else None
    return dataclasses.replace(made, build=build, sizes=sizes, measure=measure, notes=f"{entry.of}, cut")


def with_small_tied_embeddings(model: Any) -> nn.Module:
    """The model, its embeddings divided by the root of their width where they are the output projection as well.

    A standard deviation of 1 would give logits of some tens then, and one token all the probability, most often the
    one that is read: no error of a probability could be seen, and greedy decoding would copy. Other embeddings of that
    width, of positions say, are added to those of tokens and stay as large as they.
    """
    import torch
    from torch import nn

    output = getattr(model, "get_output_embeddings", lambda: None)()
    if output is None or output.weight is not model.get_input_embeddings().weight:
        return model
    width = output.weight.shape[-1]
    seen: set[int] = set()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.embedding_dim == width and id(module.weight) not in seen:
                seen.add(id(module.weight))
                module.weight.mul_(width**-0.5)
    return model
