"""The numerical class of every op, read from `classes.toml`, which explains its columns."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.cases import Direction, NumericalClass

TABLE = Path(__file__).with_name("classes.toml")

WIDE = frozenset({"float32", "float64", "complex64", "complex128", "int8", "int16", "int32", "int64", "uint8", "bool"})
"""Dtypes to which the first of the two limits of an elementwise op applies; integers give float32 results."""


@dataclass(frozen=True)
class When:
    """An argument that, where it is given and true, changes the class of a call."""

    argument: str
    position: int | None
    numerics: NumericalClass
    check: str | None

    def applies(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        if self.position is not None and len(args) > self.position:
            return bool(args[self.position])
        return bool(kwargs.get(self.argument))


@dataclass(frozen=True)
class OpClass:
    """How the results of an op are judged. `check` names a function of `properties`, `resolve` one of `defaults`."""

    subject: str
    numerics: NumericalClass = NumericalClass.COMPOSITE
    backward: NumericalClass | None = None  # in the backward direction; None: the same
    ulps: tuple[float, float] | None = None  # in float32 and wider, in 16 bits and fewer
    check: str | None = None
    resolve: str | None = None
    when: tuple[When, ...] = ()

    def of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OpClass:
        """The class of one call, its arguments considered."""
        for when in self.when:
            if when.applies(args, kwargs):
                return replace(self, numerics=when.numerics, backward=None, check=when.check)
        return self

    def numerics_of(self, direction: Direction) -> NumericalClass:
        """The class in which results of this direction are compared."""
        return self.backward or self.numerics if direction is Direction.BACKWARD else self.numerics

    def ulps_for(self, dtype: str) -> float | None:
        """The elementwise limit for results of `dtype`, in units in the last place."""
        return None if self.ulps is None else self.ulps[0 if dtype in WIDE else 1]


def lookup(subject: str) -> OpClass:
    """The class of an op; composite where the table does not have it."""
    return table().get(subject) or OpClass(subject)


def unclassified() -> list[str]:
    """The ops of the installed torch that the table does not have, in database order."""
    from op_coverage import upstream

    return [subject for subject in upstream.op_infos() if subject not in table()]


@functools.cache
def table() -> Mapping[str, OpClass]:
    """The table, by subject. Raises `ValueError` that names the file, the group and what is wrong with it."""
    return load(TABLE)


def load(path: Path) -> Mapping[str, OpClass]:
    """Reads and checks a table; see `table`."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from None
    found: dict[str, OpClass] = {}
    for group in document.get("group", ()):
        where = f"{path}, group {group.get('about', '?')!r}"
        _check_keys(where, group, {"class", "ops"}, {"about", "check", "backward"})
        numerics = _numerics(where, group["class"])
        if (numerics is NumericalClass.PROPERTY) != ("check" in group):
            raise ValueError(f"{where}: property groups, and only they, name a check")
        if (numerics is NumericalClass.ELEMENTWISE) != isinstance(group["ops"], dict):
            raise ValueError(f"{where}: elementwise groups, and only they, give two limits to each op")
        if "backward" in group and numerics is not NumericalClass.PROPERTY:
            raise ValueError(f"{where}: only property groups name a class for the backward direction")
        backward = _numerics(where, group["backward"]) if "backward" in group else None
        for subject in group["ops"]:
            if subject in found:
                raise ValueError(f"{where}: {subject!r} is in the table already, as {found[subject].numerics}")
            ulps = tuple(group["ops"][subject]) if numerics is NumericalClass.ELEMENTWISE else None
            found[subject] = OpClass(subject, numerics, backward, ulps, check=group.get("check"))
    for entry in document.get("when", ()):
        where = f"{path}, when {entry.get('argument', '?')!r}"
        _check_keys(where, entry, {"class", "ops", "argument"}, {"about", "position", "check"})
        when = When(entry["argument"], entry.get("position"), _numerics(where, entry["class"]), entry.get("check"))
        for subject in entry["ops"]:
            found[subject] = replace(_present(where, found, subject), when=(*found[subject].when, when))
    for subject, name in document.get("resolve", {}).items():
        found[subject] = replace(_present(f"{path}, resolve", found, subject), resolve=name)
    return found


def _check_keys(where: str, entry: Mapping[str, Any], required: set[str], optional: set[str]) -> None:
    unknown, missing = sorted(set(entry) - required - optional), sorted(required - set(entry))
    if unknown:
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(required | optional))}")
    if missing:
        raise ValueError(f"{where}: no key {missing[0]!r}")


def _numerics(where: str, name: str) -> NumericalClass:
    try:
        return NumericalClass(name)
    except ValueError:
        raise ValueError(f"{where}: {name!r} is not a class; classes: {', '.join(NumericalClass)}") from None


def _present(where: str, found: Mapping[str, OpClass], subject: str) -> OpClass:
    if subject not in found:
        raise ValueError(f"{where}: {subject!r} is in no group")
    return found[subject]
