"""rules.toml: what the fields of a config become, by their names, on each rung of the ladder."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

FILE = Path(__file__).with_name("rules.toml")


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the fields become whose whole name a regular expression matches."""

    fields: str
    value: int | str | None = None
    at_most: int | str | None = None
    each: int | str | None = None
    scale: float | bool | None = None
    keep: bool = False
    where: str | None = None


class Rung(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to shrink, tried where those before it do not run."""

    name: str
    scale: float = 0.0625
    sizes: dict[str, int] = {}
    keep: str | None = None
    fill: bool = False
    nones: bool = False

    def amount(self, of: int | str) -> int:
        """The number that a size's name stands for on this rung; a number stands for itself."""
        return of if isinstance(of, int) else {**rules().sizes, **self.sizes}[of]

    def keeps(self, path: str) -> bool:
        return self.keep is not None and re.fullmatch(self.keep, path) is not None


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sizes: dict[str, int]
    rule: list[Rule]
    rung: list[Rung]


@functools.cache
def rules() -> Rules:
    """What rules.toml says. Raises msgspec.ValidationError, naming the key, where it is malformed."""
    return msgspec.convert(tomllib.loads(FILE.read_text()), Rules)


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], re.Pattern[str] | None, Rule]]:
    return [(re.compile(r.fields), re.compile(r.where) if r.where else None, r) for r in rules().rule]


def warm() -> None:
    """Reads the file and compiles its patterns, so that forked children need not."""
    _patterns()


@functools.cache
def rule(field: str, path: str) -> Rule | None:
    """The first rule for a field at a path; None where the rules say nothing."""
    for fields, where, candidate in _patterns():
        if fields.fullmatch(field) and (where is None or where.search(path)):
            return candidate
    return None


def is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def each_number(value: Any, change: Callable[[int], int]) -> Any:
    """`value` with `change` applied to each whole number in it, however nested; tuples become lists."""
    if isinstance(value, list | tuple):
        return [each_number(v, change) for v in value]
    return change(value) if is_number(value) else value


def shrunk(field: str, path: str, value: Any, rung: Rung) -> Any:
    """What the rules make of one value; the value itself where they say nothing."""
    found = rule(field, path)
    if found is None or found.keep or rung.keeps(path):
        return value
    if found.scale is not None:
        factor = rung.scale if found.scale is True else float(found.scale)
        return each_number(value, lambda n: max(4, int(n * factor)) if n > 4 else n)
    if found.each is not None:
        least = rung.amount(found.each)
        return each_number(value, lambda n: min(n, least))
    if not is_number(value) or value <= 0:
        return value
    if found.value is not None:
        return rung.amount(found.value)
    if found.at_most is not None:
        return min(value, rung.amount(found.at_most))
    return value


def each_shrunk(field: str, path: str, values: list[Any], rung: Rung) -> list[Any]:
    """A list with an element for each layer: each as if it were the value for all."""
    return [each_number(value, lambda n: shrunk(field, path, n, rung)) for value in values]


def instead_of_none(field: str, path: str, rung: Rung) -> int | None:
    """What a field gets that is None, where the rules know its size."""
    found = rule(field, path)
    if found is None or found.keep:
        return None
    size = found.value if found.value is not None else found.at_most
    return None if size is None else rung.amount(size)
