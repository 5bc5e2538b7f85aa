"""Finds backends: installed ones by entry point, others by `file.py:NAME`, `compile:NAME` or `device:NAME`.

Pure: nothing here imports torch. Whether a backend can run is what the backend itself says, from package metadata.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from conformance.backends.compiled import CompiledBackend
from conformance.backends.device import DeviceBackend
from conformance.backends.protocol import PROTOCOL_VERSION, Backend, BackendError, Capabilities
from conformance.isolation import forked

GROUP = "conformance.backends"
"""Entry-point group in which a package registers `NAME = "module:OBJECT"`, a class, an instance or a factory."""

ATTRIBUTES: Mapping[str, type] = {
    "name": str,
    "protocol_version": int,
    "device": str,
    "imports": str,
    "compile_source": str,
}
METHODS = ("availability", "capabilities", "setup", "compile")


class Listing(msgspec.Struct, frozen=True):
    """One line of `conformance backends`."""

    name: str
    source: str  # the distribution that registers it
    available: bool
    detail: str  # its version where it is available, else the reason


def find(
    spec: str,
    *,
    backend_import: str | Sequence[str] | None = (),
    backend_options: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> Backend:
    """The backend that `spec` names, not yet set up.

    `spec` is the name of an installed backend, `path/to/file.py:NAME` or `package.module:NAME` (a class, an instance or
    a factory), `compile:NAME` (a name registered with Dynamo) or `device:MODULE` (an out-of-tree device). The modules
    of `backend_import` register what `compile:` and `device:` name; `backend_options` and `device` go to the factory's
    parameters `options` and `device`.

    Raises `BackendError`, one line, where there is no such backend or it cannot be made.
    """
    modules = (backend_import,) if isinstance(backend_import, str) else tuple(backend_import or ())
    options = dict(backend_options) if backend_options is not None else None
    head, colon, tail = spec.partition(":")
    if colon and not tail:
        raise BackendError(f"backend {spec!r}: nothing follows the colon")
    if colon and head == "compile":
        return CompiledBackend(tail, modules=modules, options=options, device=device or "cpu")
    if colon and head == "device":
        return DeviceBackend(tail, modules=modules, options=options, device=device)
    if modules:
        raise BackendError(f"backend {spec!r}: --backend-import goes with compile:NAME and device:NAME only")
    if spec.endswith(".py") or ".py:" in spec:
        made, where = _from_file(spec), spec
    elif colon:
        made, where = _attribute(_import_module(head, spec), tail, spec), spec
    else:
        made, where = _from_entry_point(spec), spec
    return validate(_instantiate(made, where, options=options, device=device), where)


def is_known(name: str) -> bool:
    """Whether an installed backend has this name; loads nothing."""
    return bool(entry_points(group=GROUP, name=name))


def available() -> list[Listing]:
    """Every installed backend, by name; one that fails to load is listed as unavailable, with the reason."""
    return [_listed(entry) for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)]


def missing(backend: object) -> list[str]:
    """What a backend lacks of the required members, one sentence each; empty when it is complete."""
    complaints = []
    for name, kind in ATTRIBUTES.items():
        if not hasattr(backend, name):
            complaints.append(f"has no attribute {name!r} ({kind.__name__})")
        elif not isinstance(getattr(backend, name), kind):
            got = type(getattr(backend, name)).__name__
            complaints.append(f"attribute {name!r} must be {kind.__name__}, not {got}")
    complaints += [f"has no method {name}()" for name in METHODS if not callable(getattr(backend, name, None))]
    return complaints


def validate(backend: Any, where: str) -> Backend:
    """`backend` itself if it has the required members in a supported protocol version, else `BackendError`."""
    complaints = missing(backend)
    if complaints:
        raise BackendError(f"backend {where!r}: {'; '.join(complaints)}")
    if backend.protocol_version != PROTOCOL_VERSION:
        raise BackendError(
            f"backend {where!r}: protocol_version is {backend.protocol_version}, this suite speaks {PROTOCOL_VERSION}"
        )
    return backend


def capabilities(backend: Backend) -> Capabilities:
    """What a backend declares, checked. Raises `BackendError` that names the field and what would be right."""
    declared = backend.capabilities()
    try:
        return msgspec.convert(declared, Capabilities)
    except msgspec.ValidationError as error:
        fields = ", ".join(Capabilities.__struct_fields__)
        raise BackendError(f"backend {backend.name!r}: capabilities(): {error} (fields: {fields})") from None


LOADING_S = 120.0
"""How long a package may take to import when backends are listed: one may build an extension at its first import."""


def _listed(entry: EntryPoint) -> Listing:
    """In a child where the adapter lies in the backend's own package: importing that may import torch or register a
    device, and listing must leave no trace. This package's own adapters import nothing heavy."""
    if entry.module.partition(".")[0] == __package__.partition(".")[0] or not hasattr(os, "fork"):
        return _listing(entry)
    report = forked.run(lambda: [msgspec.json.encode(_listing(entry))], LOADING_S)
    if report.lines:
        return msgspec.json.decode(report.lines[0], type=Listing)
    return Listing(entry.name, _source(entry), False, f"does not load: {report.end} ({report.detail})")


def _source(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "?"


def _listing(entry: EntryPoint) -> Listing:
    try:
        backend = validate(_instantiate(entry.load(), entry.name, options=None, device=None), entry.name)
        ok, detail = backend.availability()
    except Exception as error:  # a broken backend must not hide the others
        ok, detail = False, f"does not load: {_one_line(error)}"
    return Listing(entry.name, _source(entry), bool(ok), str(detail))


def _from_entry_point(name: str) -> Any:
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in entries:
        near = difflib.get_close_matches(name, entries, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise BackendError(
            f"no backend {name!r}: {hint}installed are {', '.join(sorted(entries)) or 'none'}; "
            "others: path/to/file.py:NAME, compile:NAME, device:MODULE"
        )
    try:
        return entries[name].load()
    except Exception as error:
        raise BackendError(f"backend {name!r} does not load: {_one_line(error)}") from error


def _from_file(spec: str) -> Any:
    path_text, colon, name = spec.rpartition(":") if ".py:" in spec else (spec, "", "")
    path = Path(path_text)
    if not path.is_file():
        raise BackendError(f"backend {spec!r}: there is no file {path_text}")
    module = _load_file(path.resolve(), spec)
    if not colon:
        names = [key for key, value in vars(module).items() if not missing(value)]
        raise BackendError(f"backend {spec!r}: say which object, as {path_text}:{'|'.join(names) or 'NAME'}")
    return _attribute(module, name, spec)


def _load_file(path: Path, spec: str) -> ModuleType:
    # The name keeps two files with the same stem apart, and finds the module again when it is asked for twice.
    name = f"conformance_backend_{path.stem}_{abs(hash(str(path))):x}"
    if name in sys.modules:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None  # the suffix is .py
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        # Last, so that the modules beside the file can be imported but shadow nothing.
        sys.path.append(str(path.parent))
    try:
        module_spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        raise BackendError(f"backend {spec!r}: {path.name} does not load: {_one_line(error)}") from error
    return module


def _import_module(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise BackendError(f"backend {spec!r}: cannot import {name}: {_one_line(error)}") from error


def _attribute(module: ModuleType, name: str, spec: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        near = _did_you_mean(name, vars(module))
        raise BackendError(f"backend {spec!r}: nothing there is called {name!r}{near}") from None


def _did_you_mean(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, [n for n in names if not n.startswith("__")], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _instantiate(made: Any, where: str, *, options: Mapping[str, Any] | None, device: str | None) -> Any:
    given = {key: value for key, value in (("options", options), ("device", device)) if value is not None}
    if not isinstance(made, type) and not missing(made):
        if given:
            raise BackendError(f"backend {where!r} is an instance: it takes no {' and no '.join(given)}")
        return made
    if not callable(made):
        raise BackendError(f"backend {where!r}: {'; '.join(missing(made))}")
    try:
        accepted = dict(inspect.signature(made).parameters)
    except (TypeError, ValueError):
        accepted = {}
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    for key in given:
        if key not in accepted and not takes_any:
            raise BackendError(f"backend {where!r} takes no --{'backend-options' if key == 'options' else key}")
    try:
        return made(**given)
    except BackendError:
        raise
    except Exception as error:
        raise BackendError(f"backend {where!r} cannot be made: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
