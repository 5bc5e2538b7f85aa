"""Public facts about the card, as `torch.spyre.get_device_properties` reports them."""

from __future__ import annotations

from dataclasses import dataclass

from spyre_backend.hardware import SPYRE


@dataclass(frozen=True)
class DeviceProperties:
    """Sizes in bytes, bandwidth in bytes a second, clock in hertz. `spyre_backend.hardware` has the source of each."""

    name: str
    total_memory: int  # usable: 128 GB less 16 for error correction
    multi_processor_count: int  # cores
    corelets_per_core: int
    scratchpad_bytes: int  # of one core
    stick_bytes: int  # the unit of transfer
    memory_bandwidth: float
    clock_rate: float  # not published: what 128 bytes a cycle on the ring imply
    simulated: bool

    # torch.compile keys its caches by these.
    major: int = 1
    minor: int = 0


PROPERTIES = DeviceProperties(
    name=f"{SPYRE.name} (simulated)",
    total_memory=SPYRE.memory,
    multi_processor_count=SPYRE.cores,
    corelets_per_core=SPYRE.corelets,
    scratchpad_bytes=SPYRE.scratchpad,
    stick_bytes=SPYRE.stick,
    memory_bandwidth=SPYRE.peak_bandwidth,
    clock_rate=SPYRE.clock_rate,
    simulated=True,
)
