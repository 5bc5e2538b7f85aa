"""Every private symbol of torch that the backend touches, each with the reason. This is what the drift check reads.

Code elsewhere in the package takes them from here. Branch on features, never on version numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import torch

_F = TypeVar("_F", bound=Callable[..., object])

# ---- begin: device ----------------------------------------------------------------------------------------------------

# The name that PrivateUse1 has before any package has renamed it: upstream has no constant for it.
UNNAMED_PRIVATEUSE1 = "privateuseone"

# Which package's device this process already has: nothing public tells.
privateuse1_name: Callable[[], str] = torch._C._get_privateuse1_backend_name

# Documented in `rename_privateuse1_backend` as the way to provide `torch.<device>`, but named as private.
register_device_module: Callable[[str, ModuleType], None] = torch._register_device_module

# Streams are rebuilt from ids with the device type's number; the enum is exported only here.
PRIVATEUSE1_DEVICE_TYPE: int = torch._C._autograd.DeviceType.PrivateUse1.value


def dynamo_is_loaded() -> bool:
    """Whether Dynamo has been imported already; asking must not import it."""
    return "torch._dynamo" in sys.modules


def dynamo_device_interfaces() -> ModuleType:
    """`register_interface_for_device` and its base class: the only way to tell Dynamo about an out-of-tree device."""
    import torch._dynamo.device_interface

    return torch._dynamo.device_interface


def untraced(function: _F) -> _F:
    """Dynamo does not look into `function` but breaks the graph at it.

    The mark that `torch._disable_dynamo` leads to, set without its wrapper, which imports Dynamo on the first call.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = f"torch.spyre.{function.__name__} acts on the device, not on tensors"  # type: ignore[attr-defined]
    return function


def constant_in_dynamo(function: _F) -> _F:
    """Dynamo calls `function` while tracing and keeps its result: the mark that `assume_constant_result` sets."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# ---- end: device ------------------------------------------------------------------------------------------------------
