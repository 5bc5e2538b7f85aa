"""What every adapter of a `torch.compile` backend has in common, and `compile:NAME`, which is nothing but that.

Adapters patch nothing: they import what registers the backend, pass its name to `torch.compile`, and declare what it
says about itself.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from conformance.backends.protocol import PROTOCOL_VERSION, BackendError

CPU_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
"""What ATen's CPU kernels take of the dtypes that are swept (complex and float8 only in part, so not promised)."""

CPU_FORMATS = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}

CPU_ACCUMULATION = {"float64": "fp64", "float32": "fp32", "float16": "fp32", "bfloat16": "fp32"}
"""`at::opmath_type`: the half formats are computed in fp32; fp32 sums are fp32 or better."""


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, from its metadata; None where it is absent."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def importable(module: str) -> bool:
    """Whether `module` can be found, without importing it (its parent packages are)."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def requires(distributions: Sequence[str], modules: Sequence[str] = ()) -> tuple[bool, str]:
    """`(True, versions)` when all are installed, else `(False, what is missing)`."""
    versions = {name: installed(name) for name in distributions}
    absent = [name for name, found in versions.items() if found is None]
    absent += [name for name in modules if not importable(name)]
    if absent:
        return False, f"not installed: {', '.join(absent)}"
    return True, ", ".join(f"{name} {found}" for name, found in versions.items())


def import_registering(modules: Sequence[str], who: str) -> None:
    """Import each module for its effect. Raises `BackendError` that names the module and the reason."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise BackendError(f"backend {who!r}: cannot import {module}: {type(error).__name__}: {reason}") from error


def compile_source(backend: str, options: Mapping[str, Any] | None = None) -> str:
    """The `torch.compile` call as a template for repro scripts; `{dynamic}` is filled in by whoever writes one."""
    shown = "" if not options else f", options={dict(options)!r}".replace("{", "{{").replace("}", "}}")
    return f'torch.compile(fn, backend="{backend}", dynamic={{dynamic}}{shown})'


class CompiledBackend:
    """Any name registered with Dynamo, on any device whose tensors it takes (`compile:NAME`).

    `modules` are imported by `setup()`, which then makes sure that the name is registered; `options` go to
    `torch.compile(options=...)` unchanged. It declares nothing else: what it can do is found by running it.
    """

    protocol_version = PROTOCOL_VERSION

    def __init__(
        self,
        dynamo_name: str,
        *,
        modules: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        device: str = "cpu",
        name: str | None = None,
    ) -> None:
        self.name = name or f"compile:{dynamo_name}"
        self.dynamo_name = dynamo_name
        self.modules = tuple(modules)
        self.options = dict(options) if options else None
        self.device = device
        self.imports = "\n".join(["import torch", *(f"import {module}" for module in self.modules)])
        self.compile_source = compile_source(dynamo_name, self.options)

    @property
    def version(self) -> str:
        found = [f"{module} {installed(module) or '?'}" for module in ("torch", *self.modules)]
        return ", ".join(found)

    def availability(self) -> tuple[bool, str]:
        return requires(("torch",), self.modules)

    def capabilities(self) -> dict[str, Any]:
        return {"device": self.device}

    def setup(self) -> None:
        """Import what registers the name. Raises `BackendError` where that fails or registers something else."""
        import_registering(self.modules, self.name)
        import torch

        known = torch.compiler.list_backends(exclude_tags=())
        if self.dynamo_name not in known:
            near = difflib.get_close_matches(self.dynamo_name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BackendError(
                f"backend {self.name!r}: Dynamo knows no {self.dynamo_name!r}{hint} "
                f"(known: {', '.join(sorted(known))}; --backend-import MODULE imports what registers it)"
            )

    def compile(self, fn: Callable[..., Any], *, dynamic: bool | None, fullgraph: bool = False) -> Callable[..., Any]:
        import torch

        return torch.compile(
            fn, backend=self.dynamo_name, dynamic=dynamic, fullgraph=fullgraph, options=self.compile_options()
        )

    def compile_options(self) -> dict[str, Any] | None:
        """What `torch.compile(options=...)` gets."""
        return self.options

    def reset(self) -> None:
        import torch

        torch.compiler.reset()
