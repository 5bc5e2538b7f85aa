"""Public facts about the card, as `torch.spyre.get_device_properties` reports them."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class DeviceProperties:
    """Sizes in bytes, bandwidth in bytes a second, clock in hertz. Source of each: torch-spyre's public documentation
    (2026), `architecture/spyre_accelerator.md` and `dataflow_architecture.md`."""

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
    name="IBM Spyre (simulated)",
    total_memory=112 * GIB,
    multi_processor_count=32,
    corelets_per_core=2,
    scratchpad_bytes=2 * MIB,
    stick_bytes=128,
    memory_bandwidth=204.8e9,
    clock_rate=1.3e9,
    simulated=True,
)
