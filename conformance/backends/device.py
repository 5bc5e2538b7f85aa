"""`device:MODULE`: any out-of-tree device, by the module that registers it, run eagerly or through Inductor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from conformance.backends.compiled import CompiledBackend, compile_source, import_registering
from conformance.backends.protocol import BackendError

MODES = ("inductor", "eager")
UNREGISTERED = "privateuseone"
"""What torch calls the out-of-tree device until a module gives it a name."""


class DeviceBackend(CompiledBackend):
    """A PrivateUse1 device. The option `mode` says how it is driven: `inductor` (default) or `eager`.

    The device is `device` where given; with `modules` given it is `target`; else it is the one that importing `target`
    registers, known after `setup()`.
    """

    def __init__(
        self,
        target: str,
        *,
        modules: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        device: str | None = None,
    ) -> None:
        rest = dict(options or {})
        self.mode = rest.pop("mode", "inductor")
        if self.mode not in MODES:
            raise BackendError(f"backend 'device:{target}': mode {self.mode!r} is not one of {', '.join(MODES)}")
        known = device or (target if modules else None)
        super().__init__(
            "inductor",
            modules=tuple(modules) or (target,),
            options=rest,
            device=known or UNREGISTERED,
            name=f"device:{target}",
        )
        self.compile_source = "fn" if self.mode == "eager" else compile_source("inductor", self.options)

    def setup(self) -> None:
        """Import the modules and find the device. Raises `BackendError` where they register none, or it is absent."""
        import_registering(self.modules, self.name)
        import torch

        if self.device == UNREGISTERED:
            from conformance.observe import out_of_tree_device

            registered = out_of_tree_device()
            if registered is None:
                raise BackendError(
                    f"backend {self.name!r}: importing {', '.join(self.modules)} registers no device; "
                    "say which by --device"
                )
            self.device = registered
        try:
            torch.empty(1, device=self.device)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise BackendError(f"backend {self.name!r}: no tensor can be made on {self.device!r}: {reason}") from error

    def compile(self, fn: Callable[..., Any], *, dynamic: bool | None, fullgraph: bool = False) -> Callable[..., Any]:
        return fn if self.mode == "eager" else super().compile(fn, dynamic=dynamic, fullgraph=fullgraph)
