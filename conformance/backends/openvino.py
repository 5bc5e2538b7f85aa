"""OpenVINO's own `torch.compile` backend, on the CPU.

It runs what it cannot take natively, in silence: single operators by default, whole subgraphs whose conversion or
execution fails. What really ran is read from its log, whose messages say when a subgraph was executed and when not.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from conformance.backends.compiled import CompiledBackend, requires

LOGGER = "openvino.frontend.pytorch.torchdynamo"
LOGGERS = ("backend", "execute", "partition")

DTYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool")
"""Those that its Python front end maps to a type of its own; others run natively."""

OVERLOAD = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)\(")

DEFAULTS: Mapping[str, Any] = {
    # Without this a graph of a single operator is never given to OpenVINO, and an op sweep would test PyTorch.
    "testing": True,
    # The default precision on a CPU with bf16 or fp16 units is not fp32, whatever the inputs are.
    "config": {"INFERENCE_PRECISION_HINT": "f32"},
}


class OpenVINOBackend(CompiledBackend):
    """`torch.compile(backend="openvino")` at fp32 precision. Options are merged over `DEFAULTS`."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        given = dict(options or {})
        merged = {**DEFAULTS, **given, "config": {**DEFAULTS["config"], **given.get("config", {})}}
        super().__init__("openvino", modules=("openvino.torch",), options=merged, name="openvino")
        self.heard = _Heard()

    def availability(self) -> tuple[bool, str]:
        return requires(("openvino", "torch"))

    def capabilities(self) -> dict[str, Any]:
        hint = self.options["config"]["INFERENCE_PRECISION_HINT"] if self.options else "f32"
        trains = str(self.options.get("aot_autograd", False)).lower() not in ("false", "0") if self.options else False
        computed = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}.get(str(hint))
        return {
            "device": self.device,
            "dtypes": DTYPES,
            "dynamic_shapes": True,
            "backward": trains,
            # float64 is computed at the hinted precision too.
            "number_formats": {"float32": computed, "float64": computed, "float16": "fp16"} if computed else {},
            "accumulation": {"float32": "fp32", "float64": "fp32", "float16": "fp32"} if computed == "fp32" else {},
            "notes": f"INFERENCE_PRECISION_HINT={hint}; without the option aot_autograd results carry no gradient",
        }

    def setup(self) -> None:
        super().setup()
        for name in LOGGERS:
            logger = logging.getLogger(f"{LOGGER}.{name}")
            logger.setLevel(logging.DEBUG)
            logger.propagate = False
            logger.addHandler(self.heard)

    @contextlib.contextmanager
    def observe(self) -> Iterator[dict[str, Any]]:
        """Kernels are subgraphs executed by OpenVINO; a fallback is an operator that PyTorch ran instead."""
        self.heard.clear()
        seen: dict[str, Any] = {}
        try:
            yield seen
        finally:
            seen.update(self.heard.observation())


class _Heard(logging.Handler):
    """Makes numbers of OpenVINO's debug messages. They carry the reason of a failure, and the graph as text."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.clear()

    def clear(self) -> None:
        self.executed = 0
        self.captured: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message.startswith("OpenVINO graph execution successful"):
            self.executed += 1
        elif message.startswith("OpenVINO execution failed with"):
            self.failures["execution: " + _reason(message, "OpenVINO execution failed with")] += 1
        elif message.startswith("Failed in OpenVINO execution:"):
            self.failures["conversion: " + _reason(message, "Failed in OpenVINO execution:")] += 1
        elif message.startswith("Graph module before partitioning"):
            self.captured += _overloads(message)
        elif message.startswith("Graph module after partitioning"):
            self.left += _overloads(message)

    def observation(self) -> dict[str, Any]:
        taken = self.captured - self.left
        fallbacks = Counter(self.left)
        if self.failures:
            # The message does not say which subgraph: none of them counts as run by OpenVINO.
            fallbacks += taken or Counter({"openvino::graph": 1})
        notes = {"openvino": "; ".join(self.failures)} if self.failures else {}
        return {
            "kernels": self.executed,
            "fallbacks": dict(fallbacks),
            "lowered": {} if self.failures else dict(taken),
            "notes": notes,
        }


def _overloads(text: str) -> Counter[str]:
    return Counter(f"{namespace}::{name}.{overload}" for namespace, name, overload in OVERLOAD.findall(text))


def _reason(message: str, prefix: str) -> str:
    lines = [line.strip() for line in message.removeprefix(prefix).splitlines() if line.strip()]
    return (lines[0] if lines else "")[:200]
