"""What can go wrong while the device is set up, and the warning for operators that ran on the host."""

from __future__ import annotations


class DeviceConflictError(RuntimeError):
    """Another package already provides the PrivateUse1 device or the name `torch.spyre` in this process."""


class DeviceBuildError(ImportError):
    """The C++ part of the device could not be built or loaded."""


class HostFallbackWarning(UserWarning):
    """An operator has no kernel on the device and ran on the host; said once for each operator."""
