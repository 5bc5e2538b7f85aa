"""Imports as a user's own program would see them: their folders first, and their packages, whatever those are called.

`models` and `nightly` are common names, and packages of this suite have them. While code of the user runs (and Dynamo
looks its modules up by name), `sys.modules` has the user's; at all other times it has ours.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

OURS = frozenset({"models", "nightly", "op_coverage", "tests"})
"""Names of top-level packages that a user may have as well."""

_theirs: dict[tuple[str, ...], dict[str, ModuleType]] = {}  # by the folders: two files may each have a `models`
_within: list[tuple[str, ...]] = []


@contextlib.contextmanager
def of_user(folders: tuple[str, ...]) -> Iterator[None]:
    """Within, modules are looked for in `folders` first, and none of ours is in the way. Reentrant."""
    if folders in _within[-1:]:
        yield
        return
    path, ours = list(sys.path), _taken()
    _within.append(folders)
    sys.modules.update(_theirs.get(folders, {}))
    sys.path[:0] = folders
    try:
        yield
    finally:
        _within.pop()
        _theirs[folders] = _taken()
        sys.modules.update(ours)
        sys.path[:] = path


def _taken() -> dict[str, ModuleType]:
    """Removes the modules with such names from sys.modules and returns them."""
    names = [name for name in sys.modules if name.partition(".")[0] in OURS]
    return {name: sys.modules.pop(name) for name in names}


def in_the_way(name: str, folders: tuple[str, ...]) -> str:
    """The file of a module of that name that is loaded from elsewhere and cannot make way; empty if there is none."""
    top = name.partition(".")[0]
    loaded = getattr(sys.modules.get(top), "__file__", None)
    has_own = any((Path(folder) / top).is_dir() or (Path(folder) / f"{top}.py").is_file() for folder in folders)
    if top in OURS or loaded is None or not has_own:
        return ""
    return "" if any(Path(loaded).is_relative_to(folder) for folder in folders) else loaded
