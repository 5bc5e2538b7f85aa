"""`conformance sweep`: pytest on the directory of a suite, then the summary of what it found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from conformance import store, suites
from conformance.commands import runs
from conformance.commands.mistakes import MISTAKE, Mistake
from conformance.report.table import Format

WORKER = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID")  # how pytest-xdist tells a worker that it is one
USAGE = 4  # pytest's exit status for a mistake on its command line


def run(suite: str, backend: str, tier: str, workers: str, further: Sequence[str], as_format: str) -> int:
    """Runs the suite; returns pytest's exit status, or 2 for a mistake on the command line."""
    runs.format_of(as_format)
    place = directory(suite)
    own, run_dir = run_options(backend, tier, further)
    command = [
        sys.executable,
        "-P",  # a directory named like one of our packages, where the user is, must not shadow it
        "-m",
        "pytest",
        str(place),
        "-p",
        "no:cacheprovider",
        "--suite",
        suite,
        "-n",
        workers,
        *own,
        *further,
    ]
    # A session of its own, also where it is started from within another one.
    environment = {name: text for name, text in os.environ.items() if not name.startswith(WORKER)}
    status = subprocess.run(command, env=environment, check=False).returncode
    if status == USAGE:
        return MISTAKE
    try:
        found = store.resolve(run_dir)
    except store.StoreError:
        return status or 1  # nothing was recorded: pytest has said why
    print()
    runs.summary(str(found), as_format, (), everything=False, rest=as_format == Format.PLAIN)
    return status


def directory(suite: str) -> Path:
    """The directory of the package whose entry point the suite is. Raises `Mistake` or `SuiteNotFound`."""
    if suite not in suites.names():
        suites.find(suite)  # says which there are
        raise Mistake(f"suite {suite!r} is not installed: run pytest on the file that declares it")
    (point,) = [each for each in entry_points(group=suites.GROUP) if each.name == suite]
    package = suites.package_of(point)
    if not hasattr(package, "__path__"):
        raise Mistake(f"suite {suite!r}: {package.__name__} is no package, so there is no directory to run pytest on")
    return Path(next(iter(package.__path__)))


def run_options(backend: str, tier: str, further: Sequence[str]) -> tuple[list[str], str]:
    """Options for pytest, and where the run will be. A run that is resumed has its own backend and tier."""
    given = {name: value(name, further) for name in ("--run-dir", "--resume")}
    if given["--resume"] is not None:
        return [], str(store.resolve(given["--resume"]))
    options = ["--backend", backend, "--tier", tier]
    if given["--run-dir"] is not None:
        return options, given["--run-dir"]
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    name = re.sub(r"[^\w.-]+", "-", f"{stamp}-{backend.rpartition(':')[2]}-{tier}")
    path = str(store.runs_root().absolute() / name)
    return [*options, "--run-dir", path], path


def value(name: str, arguments: Sequence[str]) -> str | None:
    """The last value of an option among arguments: `--name value` or `--name=value`."""
    found = None
    for position, argument in enumerate(arguments):
        if argument == name and position + 1 < len(arguments):
            found = arguments[position + 1]
        elif argument.startswith(f"{name}="):
            found = argument.partition("=")[2]
    return found
