"""The real IBM Spyre through `torch_sendnn`, the earlier compiler: a Dynamo backend `sendnn` that takes CPU tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conformance.backends.compiled import CompiledBackend, importable, installed


class TorchSendnnBackend(CompiledBackend):
    """`torch.compile(backend="sendnn")` on CPU tensors; the package moves them. Shapes are static."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__("sendnn", modules=("torch_sendnn.torch_sendnn",), options=options, name="torch_sendnn")
        self.imports = "import torch\nfrom torch_sendnn import torch_sendnn"

    def availability(self) -> tuple[bool, str]:
        if not importable("torch_sendnn"):
            return False, "not installed: torch_sendnn (part of IBM's Spyre software; not on public indexes)"
        if installed("torch") is None:
            return False, "not installed: torch"
        return True, f"torch_sendnn {installed('torch_sendnn') or '?'}, torch {installed('torch')}"

    def capabilities(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "dynamic_shapes": False,
            "number_formats": {"float16": "dl16"},
            "notes": "takes CPU tensors and moves them itself",
        }
