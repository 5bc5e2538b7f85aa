"""What Dynamo and Inductor ask about a device. Imported when something is first compiled, never before."""

from __future__ import annotations

from typing import Any

import torch

from spyre_backend import upstream
from spyre_backend.device import module
from spyre_backend.device.properties import DeviceProperties


def register() -> None:
    """Register `spyre` and `spyre:0`; calling it again changes nothing."""
    interface = make_interface()
    registry = upstream.dynamo_device_interfaces()
    for name in ("spyre", *(f"spyre:{index}" for index in range(module.device_count()))):
        if name not in dict(registry.get_registered_device_interfaces()):
            registry.register_interface_for_device(name, interface)


def make_interface() -> type:
    """The interface class; made in a function because its base is only importable together with Dynamo."""
    base: Any = upstream.dynamo_device_interfaces().DeviceInterface

    class SpyreInterface(base):
        device = module.device
        Event = module.Event
        Stream = module.Stream

        current_device = staticmethod(module.current_device)
        set_device = staticmethod(module.set_device)
        device_count = staticmethod(module.device_count)
        is_available = staticmethod(module.is_available)
        stream = staticmethod(module.stream)
        current_stream = staticmethod(module.current_stream)
        set_stream = staticmethod(module.set_stream)
        synchronize = staticmethod(module.synchronize)
        memory_allocated = staticmethod(module.memory_allocated)
        is_bf16_supported = staticmethod(module.is_bf16_supported)

        class Worker:
            """What compile workers ask; the answers do not depend on the process."""

            @staticmethod
            def set_device(device: int) -> None:
                module.set_device(device)

            @staticmethod
            def current_device() -> int:
                return module.current_device()

            @staticmethod
            def get_device_properties(device: torch.device | None = None) -> DeviceProperties:
                return module.get_device_properties()

        @staticmethod
        def exchange_device(device: int) -> int:
            previous = module.current_device()
            module.set_device(device)
            return previous

        @staticmethod
        def maybe_exchange_device(device: int) -> int:
            return SpyreInterface.exchange_device(device) if device >= 0 else module.current_device()

        @staticmethod
        def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
            module.set_stream(module.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            return 0

        @staticmethod
        def get_compute_capability(device: torch.device | None = None) -> str:
            return "spyre"

        @staticmethod
        def is_triton_capable(device: torch.device | None = None) -> bool:
            return False

    return SpyreInterface
