"""What the simulator did: launches, opcodes and bytes, for as long as somebody observes."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from spyre_backend.simulator.binding import BoundProgram


@dataclass
class Observation:
    """Launches recorded by one `observe` block. All figures are sums over its launches."""

    sequence: list[BoundProgram] = field(default_factory=list)
    """What was launched, in order."""

    @property
    def launches(self) -> int:
        """Kernels launched."""
        return len(self.sequence)

    @property
    def programs(self) -> Counter[tuple[str, str]]:
        """Launches by (name, digest) of the program."""
        found: Counter[tuple[str, str]] = Counter()
        for bound, times in self.bound_programs.items():
            found[bound.program.name, bound.program.digest] += times
        return found

    @property
    def opcodes(self) -> Counter[str]:
        """Instructions executed, by mnemonic; one counts once per launch, however large its iteration space."""
        found: Counter[str] = Counter()
        for bound, times in self.bound_programs.items():
            for name, count in bound.opcodes.items():
                found[name] += count * times
        return found

    @property
    def matmuls(self) -> int:
        """Matrix products executed."""
        return self.opcodes["matmul"]

    @property
    def seconds(self) -> float:
        """Simulated time of all launches, one after the other."""
        return math.fsum(bound.cost.seconds * times for bound, times in self.bound_programs.items())

    @property
    def bound_programs(self) -> Counter[BoundProgram]:
        """Each program with the sizes that it was launched with, and how often."""
        return Counter(self.sequence)

    @property
    def bytes_loaded(self) -> int:
        """Bytes read from device memory."""
        return sum(bound.traffic.loaded * times for bound, times in self.bound_programs.items())

    @property
    def bytes_stored(self) -> int:
        """Bytes written to device memory; an accumulating store counts its read here, too."""
        return sum(bound.traffic.stored * times for bound, times in self.bound_programs.items())

    def record(self, bound: BoundProgram) -> None:
        """Count one launch."""
        self.sequence.append(bound)


_active: list[Observation] = []


@contextlib.contextmanager
def observe() -> Iterator[Observation]:
    """Record every launch inside the block. Blocks nest; each sees the launches of those inside it."""
    observation = Observation()
    _active.append(observation)
    try:
        yield observation
    finally:
        # by identity: two observations with the same figures compare equal
        _active[:] = [other for other in _active if other is not observation]


def record(bound: BoundProgram) -> None:
    """Tell all active observers of a launch."""
    for observation in _active:
        observation.record(bound)
