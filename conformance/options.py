"""The command-line options as pytest is told of them. Imports nothing: it is part of every pytest run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

DEST = "conformance_"  # prefix of the attributes in pytest's option namespace


class Option(NamedTuple):
    """One option; `settings` knows what its values may be. `many`: may be given repeatedly, or with commas."""

    name: str
    metavar: str
    help: str
    many: bool = False
    path: bool = False

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    @property
    def dest(self) -> str:
        return DEST + self.name.replace("-", "_")


OPTIONS = (
    Option("backend", "NAME", "installed backend (default spyre), path/to/file.py:NAME, compile:NAME or device:MODULE"),
    Option("backend-import", "MODULE", "module that registers what compile:NAME or device:MODULE names", many=True),
    Option("backend-options", "KEY=VALUE", "option of the backend, or a JSON object with all of them", many=True),
    Option("device", "DEVICE", "device of the backend, where it has a choice"),
    Option("tier", "TIER", "how much to run: smoke (default), pr or nightly"),
    Option("suite", "NAME", "only this suite, where a directory has several", many=True),
    Option("op", "GLOB", "only subjects (ops, models, ...) that match", many=True),
    Option("models", "FILE", "your own models: a TOML file; without --op only they are swept", many=True, path=True),
    Option("dtype", "DTYPE", "only this dtype, e.g. float16", many=True),
    Option("shape-mode", "MODE", "only static, dynamic or automatic", many=True),
    Option("direction", "DIRECTION", "only fwd or bwd", many=True),
    Option("lane", "LANE", "only this lane, e.g. samples", many=True),
    Option("traced", "RUN", "calls of the lane `traced`: a run of the backend trace, or a file (default: newest run)"),
    Option("seed", "N", "seed of all inputs (default 0)"),
    Option("max-samples", "N", "at most so many samples a case (default: what the tier says)"),
    Option("sample-timeout", "SECONDS", "time limit of a sample (default 120, of a model 600)"),
    Option("memory-limit", "SIZE", "memory that a sample may take, e.g. 512M (default 2G, models 6G); 0: no limit"),
    Option("expectations", "FILE", "expected failures (default: BACKEND.toml of the suite)", path=True),
    Option("run-dir", "DIR", "where results go (default runs/TIME-BACKEND-TIER)", path=True),
    Option("resume", "RUN", "go on with a run that was cut short: a directory, an id or `latest`", path=True),
)


def register(add: Callable[..., Any], taken: Iterable[str], dests: Iterable[str], *, paths_only: bool) -> None:
    """Add the options through `add` (as argparse's `add_argument`), but for those whose dest is there already.

    A flag that another plugin has taken is left to it, and ours is then called `--conformance-...`.
    """
    taken, dests = set(taken), set(dests)
    for option in OPTIONS:
        if option.dest in dests or (paths_only and not option.path):
            continue
        add(
            option.flag if option.flag not in taken else f"--conformance-{option.name}",
            dest=option.dest,
            metavar=option.metavar,
            default=None,
            action="append" if option.many else "store",
            help=option.help.replace("%", "%%"),
        )
