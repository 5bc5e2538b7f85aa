"""Subjects of the user's own, `own/NAME`, as the files of --models declare them; see `models.sources.Source`."""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.cases import Options, Tolerance
from models.own import declarations, namespace
from models.own.declarations import Entry
from models.own.faults import fault, raised
from models.sources import Listed
from models.subjects import DECODES, Sizes, Subject

if TYPE_CHECKING:
    import torch
    from torch import nn

    from models.zoo.recipe import Recipe

    Call = Callable[[int, int], dict[str, Any]]

PREFIX = "own/"


def listed(options: Options) -> Iterator[Listed]:
    """Those of all files, in their order."""
    for entry in declarations.load(options.models).values():
        yield Listed(
            PREFIX + entry.name, entry.tier, decodes=entry.task in DECODES, decode_tier=entry.tier, dtypes=entry.dtypes
        )


def facts(options: Options) -> Mapping[str, Any]:
    """What a report needs to know of each: name -> priority, kind, file, and what is not the default."""
    return {
        PREFIX + entry.name: {
            "priority": entry.priority,
            "source": entry.source,
            "file": entry.file,
            "line": entry.lines[""],
            "task": entry.task,
            "tier": str(entry.tier),
            "seed": entry.seed,
            "tolerance": entry.tolerance,
        }
        for entry in declarations.load(options.models).values()
    }


def subject(name: str, options: Options) -> Subject:
    """The subject of that name. Raises `ValueError` where no file of --models has it, `UserFault` where what the user
    gave does not work, `NotBuildable` where a hub cannot be reached."""
    entries = declarations.load(options.models)
    entry = entries.get(name.removeprefix(PREFIX))
    if entry is None:
        meant = difflib.get_close_matches(name.removeprefix(PREFIX), entries, n=1)
        hint = f"did you mean {PREFIX + meant[0]!r}? " if meant else ""
        has = f"there are {', '.join(entries)}" if entries else "give their file with --models FILE"
        raise ValueError(f"no model {name!r}; {hint}{has}")
    made = _of_factory(entry) if entry.factory else _of_transformers(entry)
    return dataclasses.replace(
        made,
        name=name,
        tolerance=Tolerance(**entry.tolerance) if entry.tolerance else None,
        around=functools.partial(namespace.of_user, entry.path),
    )


# --- factories --------------------------------------------------------------------------------------------------------


def _of_factory(entry: Entry) -> Subject:
    from models.own import factories, inputs, pretrained, scripts

    module, example = factories.made(entry, entry.seed)
    pretrained.refuse_above(entry, factories.parameters(module))
    batch, length = (factories.example_size(entry, example, name) for name in declarations.DIMENSIONS)
    if entry.labels and entry.labels not in example:
        fault(entry, "labels", f"there is no input {entry.labels!r}; there are {', '.join(example)}")
    sizes = _first_is_the_example(entry, batch, length)
    examples = {entry.seed: example}

    def build(dtype: torch.dtype, seed: int, training: bool) -> nn.Module:
        made, examples[entry.seed + seed] = factories.made(entry, entry.seed + seed)
        made = made.to(dtype)
        if training:
            factories.quiet(made)
            return made.train()
        made = made.eval().requires_grad_(False)
        _try(entry, made, dtype, lambda batch, length: call(dtype, seed, batch, length), sizes)
        return made

    def call(dtype: torch.dtype, seed: int, batch: int, length: int) -> dict[str, Any]:
        return factories.resized(entry, examples[entry.seed + seed], {"batch": batch, "length": length}, dtype)

    return Subject(
        name=entry.name,
        build=build,
        inputs=call,
        lengths=length is not None,
        batched=batch is not None,
        dims={argument: tuple(dims.values()) for argument, dims in entry.dynamic.items()},
        cache_argument=inputs.cache_argument(module) if entry.task in DECODES else None,
        labels=entry.labels,
        sizes=sizes,
        script=functools.partial(scripts.of_factory, entry),
    )


def _first_is_the_example(entry: Entry, batch: int | None, length: int | None) -> Sizes:
    """Sizes of the calls: the first is the example's, unless that is 1, which torch.compile makes a constant of."""
    default = Sizes()
    default = default if batch is None or batch == 1 else dataclasses.replace(default, batch=batch)
    default = default if length is None or length == 1 else dataclasses.replace(default, length=length)
    sizes = entry.all_sizes(default)
    return dataclasses.replace(
        sizes,
        batches=tuple(n for n in sizes.batches if n != sizes.batch),
        lengths=tuple(n for n in sizes.lengths if n != sizes.length),
    )


_tried: set[tuple[bytes, str]] = set()


def _try(entry: Entry, module: nn.Module, dtype: torch.dtype, call: Call, sizes: Sizes) -> None:
    """Run the model uncompiled once, at each size that it is going to have: what fails here is not the backend's.

    Not in 16 bits, in which the CPU may lack an op: that is for the reference to say.
    """
    import torch

    key = (msgspec.json.encode(entry), str(dtype))
    if key in _tried or dtype.itemsize <= 2:
        return
    varies = {name for dims in entry.dynamic.values() for name in dims}
    calls = [(sizes.batch, sizes.length)]
    calls += [(sizes.batch, n) for n in sizes.lengths if "length" in varies]
    calls += [(n, sizes.length) for n in sizes.batches if "batch" in varies]
    for number, (batch, length) in enumerate(calls):
        given = call(batch, length)
        try:
            with namespace.of_user(entry.path), torch.no_grad(), torch.random.fork_rng(devices=[]):
                module(**given)
        except Exception as error:
            at = f"batch {batch} and length {length} (which `sizes` can say otherwise)" if number else "its own inputs"
            fault(entry, "sizes" if number else "factory", f"the model does not run with {at}: {raised(error)}", error)
    _tried.add(key)


# --- transformers -----------------------------------------------------------------------------------------------------


def _of_transformers(entry: Entry) -> Subject:
    from models import zoo_subjects
    from models.own import pretrained, scripts

    def build(dtype: torch.dtype, seed: int, training: bool) -> nn.Module:
        with namespace.of_user(entry.path):
            return pretrained.built(entry, dtype, entry.seed + seed, training)

    sizes = entry.all_sizes(Sizes())
    recipe = _recipe(entry, build, sizes)
    if entry.labels and entry.labels not in recipe.inputs:
        fault(entry, "labels", f"there is no input {entry.labels!r}; there are {', '.join(recipe.inputs)}")
    made = zoo_subjects.of_recipe(entry.name, recipe)
    return dataclasses.replace(
        made,
        build=build,
        inputs=lambda dtype, seed, batch, length: made.inputs(dtype, entry.seed + seed, batch, length),
        labels=entry.labels or made.labels,
        sizes=sizes,
        script=functools.partial(scripts.of_transformers, entry),
    )


_recipes: dict[bytes, Recipe] = {}


def _recipe(entry: Entry, build: Callable[[torch.dtype, int, bool], nn.Module], sizes: Sizes) -> Recipe:
    """The inputs, found once a process: the model has to run for that."""
    import torch

    from models.own import inputs

    key = msgspec.json.encode(entry)
    if key not in _recipes:
        model: Any = build(torch.float32, 0, False)
        try:
            found = inputs.found(model, model.config.model_type, entry.task, sizes)
        except inputs.NoInputs as error:
            said = f"no inputs were found with which {type(model).__name__} runs ({error}); give a `factory` instead"
            fault(entry, entry.source, said, error)
        cache = inputs.cache_argument(model) if entry.task in DECODES else None
        _recipes[key] = msgspec.structs.replace(found, cache_argument=cache)
    return _recipes[key]
