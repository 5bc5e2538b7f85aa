"""priority.toml, read and checked, and made into recipes."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from models.subjects import Sizes
from models.zoo.recipe import InputSpec, Recipe

FILE = Path(__file__).with_name("priority.toml")

MAX_PARAMETERS = 300_000_000
"""No priority model has more: a sweep makes several copies of each, one of them in float64."""

TEXT = Sizes(batch=2, length=128, batches=(5, 1), lengths=(65, 127, 200), prompt=100, steps=30, free=6)
"""Two sticks of 64 first; replayed one past a stick, one short of two, and past a window of 128. Decoding begins in the
second stick and ends in the third."""

CACHES = ("past_key_values", "cache", "cache_params")
"""What transformers has called the cache of a forward, from one version or architecture to another."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model; priority.toml says what its fields are. None rests on memory: `read_from` is not optional."""

    of: str
    read_from: str
    type: str
    task: str
    published: dict[str, Any]
    cut: dict[str, Any]
    shapes: str = "text"


class Shapes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a kind of model is called with."""

    inputs: dict[str, InputSpec]
    sizes: dict[str, Any] = {}  # that differ from TEXT

    def all_sizes(self) -> Sizes:
        """With what is not named as in `TEXT`. Raises TypeError for a name that `Sizes` lacks."""
        named = {name: tuple(size) if isinstance(size, list) else size for name, size in self.sizes.items()}
        return Sizes(**{**vars(TEXT), **named})


@functools.cache
def _document() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text())


@functools.cache
def entries() -> Mapping[str, Entry]:
    """The models by name, in the order of the file. Raises `msgspec.ValidationError` for a field that is none."""
    return {name: msgspec.convert(table, Entry) for name, table in _document().items() if name != "shapes"}


@functools.cache
def shapes() -> Mapping[str, Shapes]:
    """Kinds of inputs by name. Raises as `entries` does."""
    return msgspec.convert(_document()["shapes"], dict[str, Shapes])


def merged(published: Mapping[str, Any], cut: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config with those of `cut` instead, nested configs field by field."""
    made = dict(published)
    for name, value in cut.items():
        made[name] = merged(made.get(name) or {}, value) if isinstance(value, dict) else value
    return made


def recipe(entry: Entry) -> Recipe:
    """The cut model and its inputs. Raises KeyError, which says so, where transformers has no such class."""
    from models.zoo import architectures

    specs = shapes()[entry.shapes].inputs
    config = merged(entry.published, entry.cut)
    vocabulary = (config.get("text_config") or config).get("vocab_size")
    used = " ".join(str(dim) for spec in specs.values() for dim in spec.shape)
    return Recipe(
        model_type=entry.type,
        task=entry.task,
        class_name=architectures.class_name(entry.type, entry.task),
        config=config,
        inputs={name: _below(spec, vocabulary) for name, spec in specs.items()},
        lengths="length" in used,
        batched="batch" in used,
    )


def _below(spec: InputSpec, vocabulary: int | None) -> InputSpec:
    unbounded = spec.kind == "ids" and spec.high is None
    return msgspec.structs.replace(spec, high=vocabulary) if unbounded else spec
