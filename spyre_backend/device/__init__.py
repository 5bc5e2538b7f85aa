"""The simulated Spyre as a torch device. Importing this package registers it; see `registration`.

- `as_cpu(tensor)`: a CPU tensor over the bytes of a spyre tensor, with its sizes, strides and offset; no copy. It keeps
  the bytes alive. Raises `RuntimeError` for a tensor of another device.
- `clock`: simulated time. `counters`: host fallbacks and copies. `memory`: knobs that a real device does not have.
- `module`: what `torch.spyre` is.
"""

from __future__ import annotations

from spyre_backend.device.errors import DeviceBuildError, DeviceConflictError, HostFallbackWarning
from spyre_backend.device.registration import load_extension, register_device

_C = load_extension()

from spyre_backend.device import clock, counters, memory, module  # noqa: E402  (they need the extension)

register_device(module)
as_cpu = _C.as_cpu

__all__ = [
    "DeviceBuildError",
    "DeviceConflictError",
    "HostFallbackWarning",
    "as_cpu",
    "clock",
    "counters",
    "memory",
    "module",
]
