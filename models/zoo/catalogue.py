"""Recipes, derived once for each user and version of transformers, and kept on disk: one small file each.

A file appears at once or not at all, so that parallel workers can share the folder; two that derive the same recipe at
the same time write the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from models.zoo import architectures, exceptions, forked, rules
from models.zoo.derivation import SECONDS, NotDerivable, derive
from models.zoo.recipe import Recipe

OPTIONAL = ("timm", "pillow", "scipy", "torchvision", "torchaudio", "natten", "detectron2", "numba", "librosa")
"""Packages that architectures need beyond transformers: which are there decides what can be derived."""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What derivation came to: a recipe, or the reason why there is none."""

    recipe: Recipe | None = None
    reason: str = ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def key() -> str:
    """Changes whenever all recipes could: with transformers, optional packages, and the zoo's own code and rules."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.iterdir()):
        if file.suffix in (".py", ".toml") and file != exceptions.FILE:  # that is for each recipe by itself
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    digest.update(repr([(name, _version(name)) for name in OPTIONAL]).encode())
    return f"{_version('transformers')}-{digest.hexdigest()[:16]}"


def folder() -> Path:
    """Where this version's recipes are kept: in XDG_CACHE_HOME, or else in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spyre-conformance" / "zoo" / key()


def stem(model_type: str, task: str) -> str:
    """What a recipe is called in `folder()`: another name where exceptions.toml says something else about its type.

    Raises BadExceptions.
    """
    said = exceptions.entry(model_type, task)
    digest = "" if said == exceptions.Entry() else hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:8]
    return f"{model_type}@{task}@{digest}" if digest else f"{model_type}@{task}"


def _file(model_type: str, task: str) -> Path:
    return folder() / f"{stem(model_type, task)}.json"


def _stored(model_type: str, task: str) -> Outcome | None:
    try:
        return msgspec.json.decode(_file(model_type, task).read_bytes(), type=Outcome)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def is_stored(model_type: str, task: str) -> bool:
    """Whether asking costs no derivation."""
    return _stored(model_type, task) is not None


def forget(pairs: Iterable[tuple[str, str]]) -> None:
    """Removes what is stored of these (type, task) pairs."""
    for model_type, task in pairs:
        _file(model_type, task).unlink(missing_ok=True)


def _store(model_type: str, task: str, outcome: Outcome) -> None:
    target = _file(model_type, task)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as file:
        file.write(msgspec.json.encode(outcome))
    os.replace(file.name, target)


def derived(model_type: str, task: str) -> Outcome:
    """Derives in a forked child, whatever is stored. Raises KeyError where transformers has no such class."""
    architectures.class_name(model_type, task)
    import transformers  # noqa: F401  (before the fork, so that not every child imports them)

    import conformance.tiebreaks  # noqa: F401

    rules.warm()
    exceptions.entries()

    def work() -> bytes:
        try:
            return msgspec.json.encode(Outcome(derive(model_type, task)))
        except NotDerivable as error:
            return msgspec.json.encode(Outcome(reason=str(error)))

    try:
        return msgspec.json.decode(forked.call(work, seconds=8 * SECONDS), type=Outcome)
    except forked.Died as error:
        return Outcome(reason=f"the search {error}")


def outcome(model_type: str, task: str) -> Outcome:
    """What is stored, or else is derived now and stored. Tasks that share a class share the search.

    Raises KeyError where transformers has no such class.
    """
    stored = _stored(model_type, task)
    if stored is not None:
        return stored
    name = architectures.class_name(model_type, task)
    for other in architectures.architectures()[model_type].tasks:
        if other == task:
            found = derived(model_type, task)
            break
        if architectures.class_name(model_type, other) == name:
            found = outcome(model_type, other)
            if found.recipe is not None:
                found = Outcome(msgspec.structs.replace(found.recipe, task=task))
            break
    _store(model_type, task, found)
    return found


@functools.lru_cache(maxsize=256)
def recipe(model_type: str, task: str | None = None) -> Recipe:
    """The recipe of a type for a task, its main one unless given. Raises NotDerivable with the reason, and KeyError
    where transformers has no such class."""
    if task is None:
        task = architectures.architectures()[model_type].main_task
    found = outcome(model_type, task)
    if found.recipe is None:
        raise NotDerivable(found.reason)
    return found.recipe
