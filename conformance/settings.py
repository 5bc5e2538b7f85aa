"""What a user asked for on pytest's command line, parsed and checked."""

from __future__ import annotations

import argparse
import difflib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec

from conformance.cases import Direction, Options, ShapeMode, Tier
from conformance.isolation import memory
from conformance.isolation.supervisor import Limits
from conformance.options import OPTIONS

DEFAULT_BACKEND = "spyre"
DTYPES = """float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu
int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool complex32 complex64 complex128"""


class SettingsError(ValueError):
    """A value on the command line that cannot be used; the message names the option and what would be right."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides what a run does. Written into the run, so that it can be resumed and repeated."""

    backend: str = DEFAULT_BACKEND
    backend_import: tuple[str, ...] = ()
    backend_options: dict[str, Any] | None = None
    device: str | None = None
    suites: tuple[str, ...] = ()  # of those that a directory has; empty: all
    options: Options = Options()
    limits: Limits = Limits()
    expectations: str | None = None  # None: what the suite says


def _one_of(values: Iterable[Any]) -> Callable[[str], Any]:
    allowed = {str(value): value for value in values}

    def parse(text: str) -> Any:
        if text not in allowed:
            near = difflib.get_close_matches(text, allowed, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"{text!r} is unknown; {hint}one of {', '.join(allowed)}")
        return allowed[text]

    return parse


def _number(kind: type, least: float, what: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value < float("inf"):
            raise ValueError(f"{text!r} is not {what}")
        return value

    return parse


def file(text: str) -> str:
    """The absolute path of a file that is there. Raises `ValueError`."""
    if not Path(text).is_file():
        raise ValueError(f"there is no file {text}")
    return str(Path(text).absolute())  # it travels to processes and runs that may be elsewhere


def file_or_run(text: str) -> str:
    """The absolute path of a file or directory that is there; else the text, which may be the id of a run."""
    return str(Path(text).absolute()) if Path(text).exists() else text


PARSERS: Mapping[str, Callable[[str], Any]] = {
    "tier": _one_of(Tier),
    "dtype": _one_of(DTYPES.split()),
    "shape-mode": _one_of(ShapeMode),
    "direction": _one_of(Direction),
    "seed": _number(int, 0, "a number from 0 on"),
    "max-samples": _number(int, 1, "a number from 1 on"),
    "sample-timeout": _number(float, 0.001, "a number of seconds above 0"),
    "memory-limit": memory.parse_size,
    "models": file,
    "traced": file_or_run,
}
"""Option name -> what makes its value of the text, raising ValueError; for the others the text is the value."""


def given(namespace: argparse.Namespace) -> dict[str, Any]:
    """Option name -> parsed value, of the options that were given. Raises `SettingsError`."""
    values: dict[str, Any] = {}
    for option in OPTIONS:
        raw = getattr(namespace, option.dest, None)
        if raw is None:
            continue
        parse = PARSERS.get(option.name, str)
        try:
            if option.name == "backend-options":
                values[option.name] = parse_backend_options(raw)
            elif option.many:
                # The name of a file may have a comma in it.
                texts = raw if option.path else [text for item in raw for text in item.split(",") if text]
                values[option.name] = tuple(dict.fromkeys(parse(text) for text in texts))
            else:
                values[option.name] = parse(raw)
        except ValueError as error:
            raise SettingsError(f"{option.flag}: {error}") from None
    return values


def parse_backend_options(texts: Iterable[str]) -> dict[str, Any]:
    """Options of a backend from `key=value` pairs, whose values are JSON where they can be, or from a JSON object."""
    options: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                options.update(json.loads(text))
            except json.JSONDecodeError as error:
                raise ValueError(f"{text!r} is not JSON: {error}") from None
            continue
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"{text!r} is neither KEY=VALUE nor a JSON object")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return options


def settings_from(values: Mapping[str, Any], base: Settings | None = None) -> Settings:
    """Settings from the options given; with `base`, those of the run that is resumed.

    A resumed run must stay one run: an option that contradicts it raises `SettingsError`.
    """
    made = _make(values, base or Settings())
    if base is not None:
        for name in values:
            if name in _MAY_CHANGE:
                continue
            before, now = _value(base, name), _value(made, name)
            if before != now:
                raise SettingsError(
                    f"--{name}: the run to resume was made with {_shown(before)}, not {_shown(now)}; leave it out"
                )
    return made


_MAY_CHANGE = frozenset({"sample-timeout", "memory-limit", "expectations", "run-dir", "resume"})
_SELECTION = {
    "tier": "tier",
    "op": "subjects",
    "dtype": "dtypes",
    "shape-mode": "shape_modes",
    "direction": "directions",
    "lane": "lanes",
    "seed": "seed",
    "max-samples": "max_samples",
    "models": "models",
    "traced": "traced",
}
"""Option name -> field of `cases.Options`."""
_LIMITS = {"sample-timeout": "seconds", "memory-limit": "memory"}


def _make(values: Mapping[str, Any], base: Settings) -> Settings:
    renamed = _renamed(values, {"suite": "suites"})
    plain = ("backend", "backend-import", "backend-options", "device", "expectations")
    return msgspec.structs.replace(
        base,
        options=msgspec.structs.replace(base.options, **_renamed(values, _SELECTION)),
        limits=msgspec.structs.replace(base.limits, **_renamed(values, _LIMITS)),
        **renamed,
        **{name.replace("-", "_"): values[name] for name in plain if name in values},
    )


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {field: values[name] for name, field in names.items() if name in values}


def _value(settings: Settings, name: str) -> Any:
    if name in _SELECTION:
        return getattr(settings.options, _SELECTION[name])
    if name == "suite":
        return settings.suites
    return getattr(settings, name.replace("-", "_"))


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "no restriction"
    return str(value) if value is not None else "none"


def checked(settings: Settings) -> Settings:
    """The same settings; raises `SettingsError` for what can be seen to be wrong without running anything."""
    from conformance import expectations
    from conformance.backends import registry
    from conformance.backends.protocol import BackendError

    try:
        if settings.expectations is not None:
            if not Path(settings.expectations).is_file():
                raise SettingsError(f"--expectations: there is no file {settings.expectations}")
            expectations.load(settings.expectations)
        if settings.options.models or settings.options.traced or settings.options.lanes:
            check_files(settings.options, settings.suites)
        installed = {entry.name for entry in entry_points(group=registry.GROUP)}
        if ":" not in settings.backend and settings.backend not in installed:
            registry.find(settings.backend)  # raises and says what there is; loading one that exists may import torch
    except (expectations.ExpectationError, BackendError) as error:
        raise SettingsError(str(error)) from None
    return settings


def check_files(options: Options, named: Iterable[str] = ()) -> None:
    """Have the suites look at the files that `options` names: those that are named and installed, or all installed.

    Raises `SettingsError`.
    """
    from conformance import suites

    installed = suites.names()
    for name in [name for name in named if name in installed] or installed:
        check = getattr(suites.find(name), "check", None)
        try:
            if check is not None:
                check(options)
        except ValueError as error:
            raise SettingsError(str(error)) from None


def repro_flags(settings: Settings) -> str:
    """The options with which `conformance repro` finds the same backend and inputs again."""
    words = ["--backend", settings.backend]
    for module in settings.backend_import:
        words += ["--backend-import", module]
    for key, value in (settings.backend_options or {}).items():
        words += ["--backend-options", f"{key}={json.dumps(value)}"]
    if settings.device is not None:
        words += ["--device", settings.device]
    if settings.options.seed:
        words += ["--seed", str(settings.options.seed)]
    for file in settings.options.models:
        words += ["--models", file]
    if settings.options.traced is not None:
        words += ["--traced", settings.options.traced]
    return shlex.join(words)


def restrictions(options: Options) -> Iterable[tuple[str, Any, Options]]:
    """Each value of a selection option, as (flag, value, options that select by it alone)."""
    everything = Options(tier=options.tier, models=options.models, traced=options.traced)
    for name in ("op", "dtype", "shape-mode", "direction", "lane"):
        field = _SELECTION[name]
        for value in getattr(options, field):
            yield f"--{name}", value, msgspec.structs.replace(everything, **{field: (value,)})


def selected_by(flag: str, value: Any) -> Callable[[Any], bool]:
    """Whether a case is one of those that a value of a selection option asks for."""
    if flag == "--op":
        import fnmatch

        return lambda case: fnmatch.fnmatchcase(case.subject, value)
    field = {"--dtype": "dtype", "--shape-mode": "shape_mode", "--direction": "direction", "--lane": "lane"}[flag]
    return lambda case: getattr(case, field) == value
