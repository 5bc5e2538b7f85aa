"""What each model counts when ops are ranked by the models that they would unlock; see unlock_weights.toml."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

TABLE = Path(__file__).with_name("unlock_weights.toml")


@functools.cache
def table() -> Mapping[str, float]:
    """Name or glob -> weight, in the order of the file."""
    return {name: float(weight) for name, weight in tomllib.loads(TABLE.read_text())["weights"].items()}


def weights(priorities: Mapping[str, float], patterns: Mapping[str, float] | None = None) -> dict[str, float]:
    """The table, before it the models that have a priority of their own, which multiplies the weight of their kind."""
    known = table() if patterns is None else patterns
    own = {name: priority * _first(known.items(), name) for name, priority in priorities.items()}
    return {**own, **{name: weight for name, weight in known.items() if name not in own}}


def _first(patterns: Iterable[tuple[str, float]], name: str) -> float:
    return next((weight for glob, weight in patterns if fnmatchcase(name, glob)), 1.0)
