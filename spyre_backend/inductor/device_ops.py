"""The lines of generated code that deal with the device itself. One device a process, one queue: little to say."""

from spyre_backend import upstream


class SpyreDeviceOps(upstream.DeviceOpOverrides):  # type: ignore[misc, name-defined]
    """Source text for the wrapper."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"def {name}(_):\n    return 0\n"

    def set_device(self, device_idx: int) -> str:
        return f"torch.spyre.set_device({device_idx})"

    def synchronize(self) -> str:
        return "torch.spyre.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.spyre.device({device_idx})"

    def current_stream(self) -> str:
        return "torch.spyre.current_stream()"
