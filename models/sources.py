"""Where subjects come from, by the prefix of their names: the zoo has none."""

from __future__ import annotations

import fnmatch
import functools
import importlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from conformance.cases import Options, Tier
from models.subjects import Subject

TIERS = Path(__file__).with_name("tiers.toml")
ORDER = (Tier.SMOKE, Tier.PR, Tier.NIGHTLY)


@dataclass(frozen=True)
class Listed:
    """What is known of a subject before it is made."""

    name: str
    tier: Tier  # the smallest that has it
    dynamic_tier: Tier | None = None  # the smallest that runs it with symbolic sizes; None: its own
    more_tier: Tier | None = None  # the smallest that compiles it in yet more ways; None: that above its own
    decodes: bool = False  # whether it is a language model that writes token by token
    decode_tier: Tier = Tier.PR  # the smallest in which it does
    dtypes: tuple[str, ...] = ()  # in which it is run where none is asked for; empty: those of the suite


class Source(Protocol):
    """A module with these two functions."""

    def listed(self, options: Options) -> Iterable[Listed]:
        """All subjects that it has, whatever the tier, cheaply and in a stable order."""
        ...

    def subject(self, name: str, options: Options) -> Subject:
        """One of them. Raises `NotBuildable` where it cannot be made here and `ValueError` where there is none."""
        ...


OWN = "own/"
SOURCES: Mapping[str, str] = {
    "": "models.zoo_subjects",
    "priority/": "models.priority.source",
    "weights/": "models.weights.source",
    OWN: "models.own.subjects",
}
"""Prefix of names, up to and with the slash -> module."""


@functools.cache
def tiers() -> Mapping[str, Any]:
    """What tiers.toml says."""
    return tomllib.loads(TIERS.read_text())


def decode_tier(name: str) -> Tier:
    """The smallest tier in which the subject of that name decodes, if it can."""
    found = (tier for tier in ORDER if name in tiers()["decode"].get(tier, ()))
    return next(found, Tier.NIGHTLY)


def at_most(tier: Tier, limit: Tier) -> bool:
    """Whether what belongs to `tier` is run in `limit`."""
    return ORDER.index(tier) <= ORDER.index(limit)


def is_above(tier: Tier, other: Tier) -> bool:
    """Whether `tier` is a larger one than `other`."""
    return ORDER.index(tier) > ORDER.index(other)


def source(prefix: str) -> Source:
    """The source of names with that prefix."""
    found: Any = importlib.import_module(SOURCES[prefix])
    return found


def selected(options: Options) -> list[Listed]:
    """The subjects that `options` selects: those of the tier, or all that are asked for by name.

    Whoever brings models of their own and asks for none by name wants to see theirs.
    """
    prefixes = [OWN] if options.models and not options.subjects else SOURCES
    found = [each for prefix in prefixes for each in source(prefix).listed(options)]
    if options.subjects:
        return [each for each in found if any(fnmatch.fnmatchcase(each.name, glob) for glob in options.subjects)]
    return [each for each in found if at_most(each.tier, options.tier)]


def tier_of(name: str, options: Options) -> Tier:
    """The smallest tier that has the subject of that name; nightly where nobody lists it."""
    return next((each.tier for each in source(prefix_of(name)).listed(options) if each.name == name), Tier.NIGHTLY)


def subject(name: str, options: Options) -> Subject:
    """The subject of that name. Raises as `Source.subject` does."""
    return source(prefix_of(name)).subject(name, options)


def prefix_of(name: str) -> str:
    """The key of `SOURCES` that a name belongs to. Raises `ValueError` where there is none."""
    prefix, slash, _ = name.partition("/")
    if slash and prefix + slash not in SOURCES:
        raise ValueError(f"no subject {name!r}: names begin with {', '.join(p for p in SOURCES if p)} or with a type")
    return prefix + slash if slash else ""
