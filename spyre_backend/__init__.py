"""A simulated IBM Spyre behind PyTorch: `import spyre_backend` makes `spyre` a device of the process.

The device holds its tensors in host memory. Operators that it has no kernel for run on the host, are counted by name
and warned about once. `torch.compile` goes through upstream Inductor into tile programs that a simulator runs. Nothing
here imports Dynamo or Inductor before something is compiled.

Raises `DeviceConflictError` if the process has another PrivateUse1 device, `DeviceBuildError` if the C++ part cannot be
built, and `ValueError` for a `SPYRE_NUMERICS` that there is not; all before torch has been changed.
"""

from __future__ import annotations

from spyre_backend import device, upstream
from spyre_backend.device.counters import count_fallbacks, fallback_counts, reset_fallback_counts
from spyre_backend.device.errors import DeviceBuildError, DeviceConflictError, HostFallbackWarning
from spyre_backend.dry_run import DryRun, dry_run
from spyre_backend.numerics import NarrowedIntegerWarning

if upstream.inductor_is_loaded():
    from spyre_backend.inductor import register

    register()

__all__ = [
    "DeviceBuildError",
    "DeviceConflictError",
    "DryRun",
    "HostFallbackWarning",
    "NarrowedIntegerWarning",
    "count_fallbacks",
    "device",
    "dry_run",
    "fallback_counts",
    "reset_fallback_counts",
]
