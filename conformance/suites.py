"""Find a suite by its entry point (group `conformance.suites`), `package.module:NAME` or `path/to/file.py:NAME`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

GROUP = "conformance.suites"


class SuiteNotFound(Exception):
    """No suite by that name or place; the message says which there are."""


def names() -> list[str]:
    """Names of the installed suites."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def find(spec: str) -> Any:
    """The suite, an instance of what implements `cases.Suite`.

    Raises `SuiteNotFound` when there is none; an exception from importing the suite's own module is left as it is.
    """
    place, colon, attribute = spec.rpartition(":")
    if not colon:
        points = {point.name: point for point in entry_points(group=GROUP)}
        if spec not in points:
            raise SuiteNotFound(
                f"no suite named {spec!r}; installed: {', '.join(sorted(points)) or 'none'} "
                f"(entry points in the group {GROUP}), or give path/to/file.py:NAME"
            )
        package_of(points[spec])
        found = points[spec].load()
    else:
        module = _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        if not hasattr(module, attribute):
            raise SuiteNotFound(f"{place} has no {attribute!r}, asked for as suite {spec!r}")
        found = getattr(module, attribute)
    return found() if isinstance(found, type) else found


def package_of(point: EntryPoint) -> ModuleType:
    """The package in which an installed suite is, imported before a user's own of the same name can be.

    `models`, say, is a common name, and the folders of PYTHONPATH and the current one come first.
    """
    name = point.module.partition(".")[0]
    if name in sys.modules:
        return sys.modules[name]
    theirs = {os.path.realpath(folder) for folder in ("", *os.environ.get("PYTHONPATH", "").split(os.pathsep))}
    before = list(sys.path)
    sys.path[:] = [folder for folder in before if os.path.realpath(folder) not in theirs]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:  # it is nowhere else
        sys.path[:] = before
        return importlib.import_module(name)
    finally:
        sys.path[:] = before


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise SuiteNotFound(f"no file {path}, asked for as a suite")
    name = f"_conformance_suite_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    specification.loader.exec_module(module)
    return module
