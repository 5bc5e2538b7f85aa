"""Which op of OpInfo an overload is judged like: its class and its domain hold for it. See table.toml."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path

from op_coverage import classes, upstream
from op_coverage.classes import OpClass

TABLE = Path(__file__).with_name("table.toml")


def operator(op: str) -> str:
    """`addmm` for `aten.addmm.default`."""
    return op.split(".")[1]


@functools.cache
def subject(op: str) -> str | None:
    """The subject of the OpInfo that an overload (`aten.addmm.default`) is judged like; None where there is none."""
    _, name, overload = op.split(".")
    given = table()
    found = given.get(f"{name}.{overload}") or given.get(name)
    return found or _by_aten_name().get(name)


def op_class(op: str) -> OpClass:
    """How the results of an overload are judged; composite where no OpInfo is like it."""
    found = subject(op)
    return classes.lookup(found) if found else OpClass(op)


@functools.cache
def op_info(name: str) -> upstream.OpInfo | None:
    """The OpInfo that an operator (`rsqrt`) is like, for its domain."""
    found = table().get(name) or _by_aten_name().get(name)
    return upstream.op_infos().get(found) if found else None


@functools.cache
def table() -> Mapping[str, str]:
    """What table.toml says. Raises `ValueError` for an entry that leads nowhere."""
    given: Mapping[str, str] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["like"]
    for name, found in given.items():
        if found not in classes.table():
            raise ValueError(f"{TABLE}: {name!r} is like {found!r}, which classes.toml does not have")
    return given


@functools.cache
def _by_aten_name() -> Mapping[str, str]:
    """Operator -> subject: the one of its own name, else the first that says that it is that operator."""
    infos = upstream.op_infos()
    found = {name: name for name in infos if "." not in name}
    for name, info in infos.items():
        found.setdefault(upstream.aten_name(info), name)
    return found
