"""What every adapter of a `torch.compile` backend has in common, and `compile:NAME`, which is nothing but that.

Adapters patch nothing: they import what registers the backend, pass its name to `torch.compile`, and declare what it
says about itself.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, packages_distributions, version
from typing import Any

from conformance.backends.protocol import PROTOCOL_VERSION, BackendError

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


CXX_COMPILERS = ("g++", "clang++", "c++")


def torch_capabilities(device: str, **more: Any) -> dict[str, Any]:
    """What holds where PyTorch's own code runs: the swept dtypes that ATen's CPU kernels take (complex, float8 only in
    part, so not promised), and the accumulation of `at::opmath_type`: the half formats are computed in fp32; fp32 sums
    are fp32 or better."""
    return {
        "device": device,
        "dtypes": DTYPES,
        "dynamic_shapes": True,
        "backward": True,
        "number_formats": {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"},
        "accumulation": {"float64": "fp64", "float32": "fp32", "float16": "fp32", "bfloat16": "fp32"},
        "flushes_subnormals": False,
        **more,
    }


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


def requires(distributions: Iterable[str], modules: Sequence[str] = ()) -> tuple[bool, str]:
    """`(True, versions)` when all are installed, else `(False, what is missing)`."""
    versions = {name: installed(name) for name in distributions}
    absent = [name for name, found in versions.items() if found is None]
    absent += [name for name in modules if not importable(name)]
    if absent:
        return False, f"not installed: {', '.join(absent)}"
    return True, ", ".join(f"{name} {found}" for name, found in versions.items())


def cxx_compiler() -> tuple[bool, str]:
    """`(True, the C++ compiler that is found)`, else `(False, that there is none)`; `CXX` chooses one."""
    compiler = os.environ.get("CXX") or next((name for name in CXX_COMPILERS if shutil.which(name)), "")
    if not compiler or not shutil.which(compiler.split()[0]):
        return False, f"no C++ compiler: {compiler or ', '.join(CXX_COMPILERS)} not found (set CXX)"
    return True, compiler


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
    shown = "" if not options else _literal(f", options={dict(options)!r}")
    return f'torch.compile(fn, backend="{backend}", dynamic={{dynamic}}{shown})'


def _literal(source: str) -> str:
    """`source` as part of a template, in which braces are fields."""
    return source.replace("{", "{{").replace("}", "}}")


class CompiledBackend:
    """Any Dynamo backend, on any device whose tensors it takes (`compile:NAME`).

    NAME is registered with Dynamo, or `MODULE:OBJECT`, a backend that is not, or `MODULE:FACTORY()`, which makes one.
    `modules` are imported by `setup()`, which then makes sure that the name is registered; `options` go to
    `torch.compile(options=...)` unchanged, or to the factory as keyword arguments. Nothing else is declared: what it
    can do is found by running it.
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
        self.target: Any = dynamo_name  # what torch.compile takes; an object is loaded by setup()
        self.imports = "\n".join(["import torch", *(f"import {module}" for module in self.modules)])
        self.compile_source = compile_source(dynamo_name, self.options)
        module, colon, attribute = dynamo_name.partition(":")
        if colon:
            self._name_object(module, attribute)

    def _name_object(self, module: str, attribute: str) -> None:
        self.object_module, self.object_name = module, attribute.removesuffix("()")
        self.is_factory = attribute.endswith("()")
        if not self.object_name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise BackendError(f"backend {self.name!r}: compile:MODULE:OBJECT or compile:MODULE:FACTORY() is right")
        if self.options and not self.is_factory:
            raise BackendError(f"backend {self.name!r}: options go to a name or to a factory, as MODULE:FACTORY()")
        made = self.object_name
        if self.is_factory:
            made += f"({', '.join(f'{key}={value!r}' for key, value in (self.options or {}).items())})"
        self.imports += f"\nfrom {module} import {self.object_name}"
        self.compile_source = f"torch.compile(fn, backend={_literal(made)}, dynamic={{dynamic}})"
        self.target = None

    @property
    def version(self) -> str:
        return self.availability()[1]

    def availability(self) -> tuple[bool, str]:
        modules = list(self.modules)
        if ":" in self.dynamo_name:
            modules.append(self.object_module.partition(".")[0])
        providers = [entry.dist.name for entry in self._registered() if entry.dist]
        providers += [name for module in modules for name in packages_distributions().get(module.partition(".")[0], ())]
        return requires(dict.fromkeys(("torch", *providers)), modules)

    def _registered(self) -> list[EntryPoint]:
        """Dynamo itself finds backends by this entry-point group."""
        return list(entry_points(group="torch_dynamo_backends", name=self.dynamo_name))

    def capabilities(self) -> dict[str, Any]:
        return {"device": self.device}

    def setup(self) -> None:
        """Import what registers the name. Raises `BackendError` where that fails or registers something else."""
        import_registering(self.modules, self.name)
        if ":" in self.dynamo_name:
            self.target = self._load_object()
            return
        import torch

        known = torch.compiler.list_backends(exclude_tags=())
        if self.dynamo_name not in known:
            near = difflib.get_close_matches(self.dynamo_name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BackendError(
                f"backend {self.name!r}: Dynamo knows no {self.dynamo_name!r}{hint} "
                f"(known: {', '.join(sorted(known))}; --backend-import MODULE imports what registers it)"
            )
        # Now, and not at the first compile: processes are forked after the set-up, and inherit what it has imported.
        import_registering([entry.module for entry in self._registered()], self.name)

    def _load_object(self) -> Callable[..., Any]:
        import_registering((self.object_module,), self.name)
        module = importlib.import_module(self.object_module)
        try:
            found = getattr(module, self.object_name)
        except AttributeError:
            near = difflib.get_close_matches(self.object_name, dir(module), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BackendError(
                f"backend {self.name!r}: {self.object_module} has no {self.object_name!r}{hint}"
            ) from None
        if not self.is_factory:
            return found
        try:
            return found(**(self.options or {}))
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise BackendError(
                f"backend {self.name!r}: {self.object_name}() raises {type(error).__name__}: {reason}"
            ) from error

    def compile(self, fn: Callable[..., Any], *, dynamic: bool | None, fullgraph: bool = False) -> Callable[..., Any]:
        import torch

        return torch.compile(
            fn, backend=self.target, dynamic=dynamic, fullgraph=fullgraph, options=self.compile_options()
        )

    def compile_options(self) -> dict[str, Any] | None:
        """What `torch.compile(options=...)` gets."""
        return None if ":" in self.dynamo_name else self.options

    def reset(self) -> None:
        import torch

        torch.compiler.reset()
