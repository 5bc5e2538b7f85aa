"""The reconstruction of sendnn, the earlier compiler of the Spyre stack, on the simulated device of `spyre_backend`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from conformance.backends.compiled import compile_source, importable
from conformance.backends.spyre import SpyreBackend

DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")


class SendnnBackend(SpyreBackend):
    """`torch.compile(backend="sendnn")` on the simulated device. Where IBM's own is installed, the name is its.

    The option `numerics` is the device's, the others are the compiler's.
    """

    name = "sendnn"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        given = dict(options or {})
        super().__init__({name: given.pop(name) for name in ("numerics",) if name in given})
        self.options = given or None
        self.compile_source = compile_source("sendnn", self.options)

    def availability(self) -> tuple[bool, str]:
        if importable("torch_sendnn"):
            return False, "torch_sendnn is installed, to which the name belongs: use the backend torch_sendnn"
        available, detail = super().availability()
        return available, f"a reconstruction, {detail}"

    def capabilities(self) -> dict[str, Any]:
        """What the compiler declares about itself: forwards only, and no 64-bit floats."""
        found = super().capabilities()
        notes = f"a reconstruction of sendnn, not IBM's code; compiles anew for each set of sizes; {found['notes']}"
        return {**found, "dtypes": DTYPES, "backward": False, "notes": notes}

    def setup(self) -> None:
        """Register the device and the compiler; raises `DeviceConflictError` or `DeviceBuildError`."""
        super().setup()
        from spyre_backend import sendnn

        sendnn.register()

    def compile(self, fn: Callable[..., Any], *, dynamic: bool | None, fullgraph: bool = False) -> Callable[..., Any]:
        """`fn` through sendnn, with the options of this run."""
        import torch

        return torch.compile(fn, backend="sendnn", dynamic=dynamic, fullgraph=fullgraph, options=self.options)
