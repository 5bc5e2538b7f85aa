"""The real IBM Spyre through `torch_spyre`, a device whose compiler is an extension of upstream Inductor.

Names and formats follow the public sources of torch-spyre: the device is called `spyre`, registers itself when torch
is imported, and stores float16 as DL16 (1 sign, 6 exponent, 9 mantissa bits).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from conformance.backends.compiled import CompiledBackend, installed
from conformance.backends.protocol import BackendError


class TorchSpyreBackend(CompiledBackend):
    """`torch.compile(backend="inductor")` on tensors of the real device."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__("inductor", modules=("torch_spyre",), options=options, device="spyre", name="torch_spyre")

    def availability(self) -> tuple[bool, str]:
        found = installed("torch-spyre")
        if found is None:
            return False, "not installed: torch-spyre (IBM's package for the real device; `spyre` is the simulated one)"
        if installed("torch") is None:
            return False, "not installed: torch"
        return True, f"torch-spyre {found}, torch {installed('torch')} (the card is looked for when it is set up)"

    def capabilities(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "number_formats": {"float16": "dl16"},
            "notes": "int64 is narrowed to int32 on the device; one process at a time owns the card",
        }

    def setup(self) -> None:
        """Raises `BackendError` where the package does not import, or there is no card."""
        import torch

        try:
            module = importlib.import_module("torch_spyre")
            if not hasattr(torch, "spyre") and hasattr(module, "_autoload"):
                module._autoload()  # what its entry point does, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0
            torch.empty(1, dtype=torch.float16, device=self.device)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise BackendError(f"backend 'torch_spyre': no Spyre here: {type(error).__name__}: {reason}") from error
