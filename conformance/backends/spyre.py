"""The simulated Spyre of `spyre_backend`. That package registers its device when it is imported, which takes torch and
the first time a C++ compiler: so it is not imported before `setup`."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from conformance.backends.compiled import cxx_compiler, requires, torch_capabilities
from conformance.backends.protocol import PROTOCOL_VERSION, BackendError

NUMERICS = ("ieee", "dl16")
"""The numbers that the device computes with, by the name that the option `numerics` takes; the first is the default."""
VARIABLE = "SPYRE_NUMERICS"
"""The environment variable by which `spyre_backend` is told."""


class SpyreBackend:
    """`torch.compile` through upstream Inductor on the simulated device.

    The option `numerics` says what float16 is: `ieee`, or `dl16`, the device's own format. The latter is a backend of
    its own, `spyre-dl16`, so that neither its results nor what is expected of it are taken for the other's.
    """

    name = "spyre"
    protocol_version = PROTOCOL_VERSION
    device = "spyre"
    fork_safe = True  # device memory is host memory and the runtime starts no thread
    compile_source = 'torch.compile(fn, backend="inductor", dynamic={dynamic})'

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        given = dict(options or {})
        chosen = given.pop("numerics", None)
        if given:
            raise BackendError(f"backend {self.name!r}: no option {sorted(given)[0]!r}; there is numerics")
        if chosen is not None and chosen not in NUMERICS:
            near = difflib.get_close_matches(str(chosen), NUMERICS, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise BackendError(f"backend {self.name!r}: no numerics {chosen!r}; {hint}there are {', '.join(NUMERICS)}")
        self.numerics = chosen or NUMERICS[0]
        inherited = os.environ.get(VARIABLE) or NUMERICS[0]
        if chosen is None and inherited != self.numerics:
            raise BackendError(
                f"backend {self.name!r}: {VARIABLE}={inherited} is set, of which results would not tell: "
                f"say --backend-options numerics={inherited} instead"
            )
        plain = self.numerics == NUMERICS[0]
        if not plain:
            self.name = f"{self.name}-{self.numerics}"
        told = "" if plain else f'import os\nos.environ["{VARIABLE}"] = "{self.numerics}"\n'
        self.imports = f"{told}import torch\nimport spyre_backend"

    @property
    def version(self) -> str:
        """Version of the distribution, or `unknown` in a source tree that is not installed."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("spyre-conformance")
        except PackageNotFoundError:
            return "unknown"

    def availability(self) -> tuple[bool, str]:
        """Whether torch is installed. The first `setup` with a torch builds the C++ part of the device; whether that
        has happened cannot be told without importing both."""
        available, detail = requires(("torch",))
        if not available:
            return False, detail
        found, compiler = cxx_compiler()
        doubt = "" if found else f"; if its C++ part was built before, as there is {compiler}"
        return True, f"simulated, on {detail}{doubt}"

    def capabilities(self) -> dict[str, Any]:
        """What the device declares about itself."""
        # The simulator computes with ATen, in the formats in which tensors are stored.
        found = torch_capabilities(self.device, notes="simulated; eager operators run on the host and are counted")
        if self.numerics == "dl16":
            found["number_formats"] = {**found["number_formats"], "float16": "dl16"}
            found["notes"] += "; an int64 keeps 32 bits"
        return found

    def environment(self) -> dict[str, str]:
        """Compile in the process that asks (no pool of compiler processes to fork and to wait for), and anew: a graph
        that comes out of a cache was compiled for an earlier sample, and up to torch 2.14 upstream's caches forget the
        Python floats that it was specialised to."""
        return {
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
            "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
            VARIABLE: self.numerics,
        }

    def setup(self) -> None:
        """Register the device; raises `DeviceConflictError` or `DeviceBuildError`, and `BackendError` where the process
        has it already, with other numbers."""
        os.environ.setdefault(VARIABLE, self.numerics)
        from spyre_backend import numerics

        if numerics.MODE.value != self.numerics:
            raise BackendError(
                f"backend {self.name!r}: the device of this process has {numerics.MODE.value} numbers: "
                f"{VARIABLE}={self.numerics} has to be set before spyre_backend is imported"
            )

    def compile(self, fn: Callable[..., Any], *, dynamic: bool | None, fullgraph: bool = False) -> Callable[..., Any]:
        """`fn` through Inductor."""
        import torch

        return torch.compile(fn, backend="inductor", dynamic=dynamic, fullgraph=fullgraph)

    def reset(self) -> None:
        """Forget what Dynamo compiled; programs and caches on disk stay."""
        import torch

        torch.compiler.reset()

    def unsupported(self, error: BaseException) -> bool:
        """Whether the error, or what it was raised from, is a refusal by the device or its compiler."""
        seen: set[int] = set()
        found: BaseException | None = error
        while found is not None and id(found) not in seen:
            seen.add(id(found))
            inner = getattr(found, "inner_exception", None)  # how Dynamo keeps the error of a backend
            if isinstance(found, NotImplementedError) or isinstance(inner, NotImplementedError):
                return True
            found = found.__cause__ or found.__context__
        return False

    @contextmanager
    def observe(self) -> Iterator[dict[str, Any]]:
        """Yields a dict that is filled when the block ends: kernels launched, host fallbacks by overload, overloads
        that reached the lowering, copies between host and device, bytes that kernels moved, simulated seconds."""
        from spyre_backend.device import clock
        from spyre_backend.device.counters import count_fallbacks, count_transfers
        from spyre_backend.simulator import counters as simulator

        seen: dict[str, Any] = {}
        runs_before = _runs()
        started = clock.now()
        with ExitStack() as counting:
            fallbacks = counting.enter_context(count_fallbacks())
            transfers = counting.enter_context(count_transfers())
            launches = counting.enter_context(simulator.observe())
            try:
                yield seen
            finally:
                counting.close()
                lowered, external = _compiled_since(runs_before)
                seen.update(
                    kernels=launches.launches,
                    custom_kernels={},
                    fallbacks=fallbacks,
                    lowered=lowered,
                    transfers=transfers.get("host_to_device", 0) + transfers.get("device_to_host", 0),
                    bytes_moved=launches.bytes_loaded + launches.bytes_stored,
                    device_s=clock.now() - started,
                    notes={"external": ", ".join(f"{name}: {count}" for name, count in sorted(external.items()))},
                )


def _runs() -> dict[int, int]:
    from spyre_backend import report

    return {id(compilation): compilation.runs for compilation in report.compilations}


def _compiled_since(before: dict[int, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Overloads lowered to programs, and those left external, in every graph that was loaded or run since `before`."""
    from spyre_backend import report

    lowered: Counter[str] = Counter()
    external: Counter[str] = Counter()
    for compilation in report.compilations:
        if before.get(id(compilation)) != compilation.runs:
            lowered.update({_overload(name): count for name, count in compilation.lowered.items()})
            external.update({_overload(name): count for name, count in compilation.extern.items()})
    return dict(lowered), dict(external)


def _overload(name: str) -> str:
    """The dispatcher's spelling, in which the default overload has no name: the one that fallbacks are counted in."""
    return name.removesuffix(".default")
