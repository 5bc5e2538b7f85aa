"""exceptions.toml, read and checked."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from models.zoo import builders
from models.zoo.recipe import InputSpec

FILE = Path(__file__).with_name("exceptions.toml")


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What cannot be derived about a type, or about one task of it."""

    reason: str = ""
    config: dict[str, Any] = {}  # put on top of the shrunken config
    base: dict[str, Any] = {}  # passed to the class for the default that is shrunk
    keep: list[str] = []  # paths of fields that stay at their default
    inputs: dict[str, InputSpec] = {}  # instead of the guessed ones
    only: list[str] = []  # of the guessed inputs, these
    drop: list[str] = []  # guessed inputs that are not passed
    idle: list[str] = []  # inputs that the model takes but does not use
    builder: str | None = None  # makes the model: see builders.model
    requires: list[str] = []  # packages that must be importable
    unsupported: str | None = None  # why there is no tiny model

    @property
    def specs(self) -> dict[str, InputSpec]:
        return self.inputs


class BadExceptions(ValueError):
    """exceptions.toml cannot be used; the message names the file, the entry and the key."""


def parse(text: str, source: str) -> dict[str, Entry]:
    """Entries by `type` or `type/task`. Raises BadExceptions."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadExceptions(f"{source}: {error}") from error
    entries = {}
    for key, table in tables.items():
        try:
            entry = msgspec.convert(table, Entry)
        except msgspec.ValidationError as error:
            raise BadExceptions(f"{source}: [{key}]: {error}") from error
        if not (entry.reason or entry.unsupported):
            raise BadExceptions(f"{source}: [{key}]: needs a reason")
        if entry.builder:
            try:
                builders.model(entry.builder)
            except KeyError:
                raise BadExceptions(f"{source}: [{key}]: builder: {entry.builder!r} is none of builders.py") from None
        for name, spec in entry.inputs.items():
            if spec.kind == "builder" and spec.builder not in builders.ARGUMENTS:
                raise BadExceptions(f"{source}: [{key}]: inputs.{name}: no {spec.builder!r} in builders.ARGUMENTS")
        entries[key] = entry
    return entries


@functools.cache
def entries() -> dict[str, Entry]:
    """All of exceptions.toml. Raises BadExceptions."""
    return parse(FILE.read_text(), FILE.name)


def combined(found: Mapping[str, Entry], model_type: str, task: str) -> Entry:
    """What is said of a type, and on top of it what is said of one of its tasks; empty where nothing is."""
    general, special = found.get(model_type, Entry()), found.get(f"{model_type}/{task}")
    if special is None:
        return general
    said = {f: getattr(special, f) for f in Entry.__struct_fields__ if getattr(special, f) != getattr(Entry(), f)}
    for table in ("config", "base"):
        said[table] = {**getattr(general, table), **said.get(table, {})}
    return msgspec.structs.replace(general, **said)


def entry(model_type: str, task: str) -> Entry:
    """What exceptions.toml says of a type and task. Raises BadExceptions."""
    return combined(entries(), model_type, task)
