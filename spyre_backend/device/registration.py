"""Makes `spyre` a device of this process, or refuses before anything has been changed."""

from __future__ import annotations

import atexit
import sys
import threading
from types import ModuleType

import torch

from spyre_backend import numerics, upstream
from spyre_backend.device import build
from spyre_backend.device.errors import DeviceConflictError, HostFallbackWarning

NAME = "spyre"


def check_no_conflict() -> None:
    """Raises `DeviceConflictError`, naming what is there, if this process has another package's PrivateUse1 device."""
    taken = upstream.privateuse1_name()
    if taken != upstream.UNNAMED_PRIVATEUSE1:
        raise DeviceConflictError(
            f"this process already has a PrivateUse1 device, named {taken!r}{_provider(taken)}: "
            "torch allows one, so the simulated Spyre needs a process of its own"
        )
    if NAME in vars(torch):
        raise DeviceConflictError(
            f"torch.{NAME} already exists{_provider(NAME)}: the simulated Spyre does not replace it"
        )


def _provider(name: str) -> str:
    module = vars(torch).get(name)
    if module is None:
        return ""
    where = getattr(module, "__file__", None)
    return f" (torch.{name} is {getattr(module, '__name__', module)!r}{f' from {where}' if where else ''})"


def load_extension() -> ModuleType:
    """Check, then build or load the C++ part and register it with the dispatcher."""
    check_no_conflict()
    extension = build.load()
    try:
        extension.register(HostFallbackWarning)
    except RuntimeError as error:
        raise DeviceConflictError(str(error).splitlines()[0]) from None
    extension.use_dl16(numerics.warn_narrowed if numerics.is_dl16() else None)
    sys.modules[build.MODULE] = extension
    return extension


def register_device(module: ModuleType) -> None:
    """Give the device its name, its module `torch.spyre` and the methods `Tensor.spyre()` and `Tensor.is_spyre`."""
    from spyre_backend.device import memory

    memory.apply_configured_limit()
    torch.utils.rename_privateuse1_backend(NAME)
    upstream.register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    atexit.register(_stop_backward_threads)
    if upstream.dynamo_is_loaded():
        module.register_dynamo_interface()


def _stop_backward_threads() -> None:
    from spyre_backend.device import _C

    _C.stop_backward_threads(threading.active_count())
