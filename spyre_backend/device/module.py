"""`torch.spyre`: what torch and its users expect of a device module, with PyTorch's names and meanings.

There is one device a process. Work runs in program order, so synchronising has nothing to wait for. Times are
simulated.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from spyre_backend import upstream
from spyre_backend.device import _C
from spyre_backend.device.properties import PROPERTIES, DeviceProperties

Device = torch.device | str | int | None

# Inductor looks these up here when it first compiles for the device: the extension is imported then, and not before.
INDUCTOR_NAMES = frozenset({"Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen"})


def __getattr__(name: str) -> Any:
    if name not in INDUCTOR_NAMES:
        raise AttributeError(f"module 'torch.spyre' has no attribute {name!r}")
    register_dynamo_interface()
    from spyre_backend import inductor

    return getattr(inductor, name)


def register_dynamo_interface() -> None:
    """Tell Dynamo and Inductor about the device; imports `torch._dynamo`."""
    from spyre_backend.device import dynamo

    dynamo.register()


def _index(device: Device = None) -> int:
    """The index of a device; raises `RuntimeError` if it is not a spyre device that exists."""
    if device is None:
        return torch.accelerator.current_device_index()
    if isinstance(device, int):
        index: int | None = device
    else:
        device = torch.device(device)
        if device.type != "spyre":
            raise RuntimeError(f"expected a spyre device, got {device}")
        index = device.index
    if index is None or index == -1:
        return torch.accelerator.current_device_index()
    if not 0 <= index < device_count():
        raise RuntimeError(f"there is no spyre:{index}: a process has {device_count()} spyre device")
    return index


# ---- devices ----


@upstream.constant_in_dynamo
def is_available() -> bool:
    """Whether the device can be used; the simulated one always can."""
    return True


@upstream.constant_in_dynamo
def is_initialized() -> bool:
    """Whether the device is ready; importing `spyre_backend` makes it so."""
    return True


@upstream.constant_in_dynamo
def device_count() -> int:
    """Devices of this process: one."""
    return 1


def init() -> None:
    """Nothing is left to do after import."""


@upstream.untraced
def current_device() -> int:
    """Index of the current device."""
    return torch.accelerator.current_device_index()


@upstream.untraced
def set_device(device: Device) -> None:
    """Make `device` current; raises `RuntimeError` if it does not exist."""
    torch.accelerator.set_device_index(_index(device))


@upstream.constant_in_dynamo
def get_device_properties(device: Device = None) -> DeviceProperties:
    """Facts about the card."""
    return PROPERTIES


@upstream.constant_in_dynamo
def get_device_name(device: Device = None) -> str:
    """Name of the card."""
    return PROPERTIES.name


class device:
    """Context manager: `device` is current inside the block."""

    def __init__(self, device: Device) -> None:
        self.idx = _index(device)
        self.previous = -1

    def __enter__(self) -> None:
        self.previous = current_device()
        set_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_device(self.previous)


class device_of(device):
    """Context manager: the device of a tensor is current inside the block; no change for tensors elsewhere."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "spyre" else None)


# ---- streams and events ----


class Stream(torch.Stream):
    """A queue of work. All queues are done at once, in program order."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if {"stream_id", "device_index", "device_type"} & kwargs.keys():
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, device=torch.device("spyre", _index(device)), priority=priority)


class _SpyreEvents(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and torch.device(instance.device).type == "spyre"


class Event(torch.Event, metaclass=_SpyreEvents):
    """A point on the simulated clock. `elapsed_time` is in milliseconds of simulated time.

    Makes plain `torch.Event`s, which is all that `torch.Event.elapsed_time` takes.
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        return torch.Event("spyre", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


@upstream.untraced
def synchronize(device: Device = None) -> None:
    """Wait for all work: there is none, since work runs as it is issued."""
    torch.accelerator.synchronize(_index(device))


@upstream.untraced
def current_stream(device: Device = None) -> torch.Stream:
    """The current stream of `device`."""
    return torch.accelerator.current_stream(_index(device))


@upstream.untraced
def default_stream(device: Device = None) -> torch.Stream:
    """The default stream of `device`."""
    return Stream(stream_id=0, device_index=_index(device), device_type=upstream.PRIVATEUSE1_DEVICE_TYPE)


@upstream.untraced
def set_stream(stream: torch.Stream) -> None:
    """Make `stream` current."""
    torch.accelerator.set_stream(stream)


class stream:
    """Context manager: `stream` is current inside the block; `None` changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self.previous: torch.Stream | None = None

    def __enter__(self) -> None:
        if self.stream is not None:
            self.previous = current_stream()
            set_stream(self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.previous is not None:
            set_stream(self.previous)


# ---- random numbers: the same seed gives the CPU's numbers ----


@upstream.untraced
def default_generator(device: Device = None) -> torch.Generator:
    """The generator used where none is given."""
    return _C.default_generator(_index(device))


@upstream.untraced
def manual_seed(seed: int) -> None:
    """Seed the current device. `torch.manual_seed` does so too."""
    default_generator().manual_seed(int(seed))


@upstream.untraced
def manual_seed_all(seed: int) -> None:
    """Seed every device."""
    for index in range(device_count()):
        default_generator(index).manual_seed(int(seed))


@upstream.untraced
def seed() -> int:
    """Seed the current device with a random number, which is returned."""
    return default_generator().seed()


@upstream.untraced
def seed_all() -> None:
    """Seed every device with one random number."""
    manual_seed_all(seed())


@upstream.untraced
def initial_seed() -> int:
    """The seed of the current device."""
    return default_generator().initial_seed()


@upstream.untraced
def get_rng_state(device: Device = "spyre") -> torch.Tensor:
    """State of the device's generator: a CPU tensor of bytes."""
    return default_generator(device).get_state()


@upstream.untraced
def set_rng_state(new_state: torch.Tensor, device: Device = "spyre") -> None:
    """Restore a state that `get_rng_state` returned."""
    default_generator(device).set_state(new_state.cpu())


def get_rng_state_all() -> list[torch.Tensor]:
    """States of every device."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Restore the states of every device."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _is_in_bad_fork() -> bool:
    return False  # nothing of the device is lost in a forked child


# ---- memory, in bytes of whole sticks; nothing is cached, so what is reserved is what is allocated ----


@upstream.untraced
def memory_allocated(device: Device = None) -> int:
    """Bytes held by tensors now."""
    return torch.accelerator.memory_allocated(_index(device))


@upstream.untraced
def max_memory_allocated(device: Device = None) -> int:
    """The most bytes held at once since the last `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(_index(device))


@upstream.untraced
def memory_reserved(device: Device = None) -> int:
    """Bytes taken from the device now."""
    return torch.accelerator.memory_reserved(_index(device))


@upstream.untraced
def max_memory_reserved(device: Device = None) -> int:
    """The most bytes taken at once since the last `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_reserved(_index(device))


@upstream.untraced
def memory_stats(device: Device = None) -> dict[str, Any]:
    """All counters, with the names of `torch.accelerator.memory_stats`."""
    return torch.accelerator.memory_stats(_index(device))


@upstream.untraced
def reset_peak_memory_stats(device: Device = None) -> None:
    """Peaks start again from what is held now."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


@upstream.untraced
def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Totals start again from zero."""
    torch.accelerator.reset_accumulated_memory_stats(_index(device))


@upstream.untraced
def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes."""
    free, total = torch.accelerator.get_memory_info(_index(device))
    return free, total


@upstream.untraced
def empty_cache() -> None:
    """Nothing is cached."""


# ---- mixed precision ----


@upstream.constant_in_dynamo
def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 tensors can be stored and computed with."""
    return True


@upstream.constant_in_dynamo
def get_amp_supported_dtype() -> list[torch.dtype]:
    """What `torch.autocast("spyre")` may cast to."""
    return [torch.float16, torch.bfloat16]
