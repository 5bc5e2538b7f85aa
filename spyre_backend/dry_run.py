"""What a model would cost, without its weights and without running it: an 8-billion-parameter model on a laptop."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from spyre_backend import report, upstream

if TYPE_CHECKING:
    from spyre_backend.cost import Cause, Cost
    from spyre_backend.simulator import Observation


@dataclass(frozen=True)
class Kernel:
    """One program with one set of sizes; `times` is how often it was launched, `cost` what one launch costs."""

    program: str
    times: int
    cost: Cost

    @property
    def seconds(self) -> float:
        """Of all its launches."""
        return self.times * self.cost.seconds

    @property
    def lost_s(self) -> float:
        """Of all its launches, above the roofline."""
        return self.times * self.cost.lost_s


@dataclass
class DryRun:
    """What was launched inside a `dry_run` block so far."""

    _observed: Observation
    _before: dict[int, int] = field(default_factory=dict)  # runs of each compilation when the block began

    @property
    def launches(self) -> int:
        """Kernels that would have been launched."""
        return self._observed.launches

    @property
    def programs(self) -> int:
        """Distinct programs among them, whatever their sizes."""
        return len({digest for _, digest in self._observed.programs})

    @property
    def seconds(self) -> float:
        """Simulated time of all launches, one after the other."""
        return self._observed.seconds

    @property
    def roofline_s(self) -> float:
        """The least that the launches could take, each at the peak of what it needs most."""
        return sum(times * bound.cost.roofline_s for bound, times in self._observed.bound_programs.items())

    def kernels(self) -> list[Kernel]:
        """Every program and set of sizes, what loses most time first."""
        found = self._observed.bound_programs.items()
        kernels = [Kernel(bound.program.name, times, bound.cost) for bound, times in found]
        return sorted(kernels, key=lambda each: (-each.lost_s, each.program))

    def lost_by_cause(self) -> dict[Cause, float]:
        """Seconds above the roofline by what they are owed to, the most first."""
        lost: dict[Cause, float] = defaultdict(float)
        for kernel in self.kernels():
            lost[kernel.cost.cause] += kernel.lost_s
        return dict(sorted(lost.items(), key=lambda item: -item[1]))

    def save_timeline(self, path: str | Path) -> None:
        """Writes the launches as a Chrome trace, one after the other: see `spyre_backend.cost.timeline`."""
        from spyre_backend.cost import timeline

        timeline.save(((bound.program.name, bound.cost) for bound in self._observed.sequence), path)

    def on_host(self) -> Counter[str]:
        """Calls by operator that compiled graphs leave to the host. Their time, and that of transfers, is not known."""
        total: Counter[str] = Counter()
        for compilation in report.compilations:
            for operator, count in compilation.extern.items():
                runs = compilation.runs - self._before.get(id(compilation), 0)
                total[operator] += count * runs
        return +total


@contextmanager
def dry_run() -> Iterator[DryRun]:
    """Tensors made inside have no memory, and launches are costed and not run.

    Make the model and its inputs inside, on the device, and call what `torch.compile` makes of it:

    >>> with dry_run() as found:
    ...     with torch.device("spyre"):
    ...         model = AutoModelForCausalLM.from_config(config, dtype=torch.float16).eval()
    ...     with torch.no_grad():
    ...         torch.compile(model)(torch.ones(1, 512, dtype=torch.int64, device="spyre"))
    >>> found.seconds, found.launches, found.kernels()[0]

    What runs outside of compiled graphs is not seen. Results are without meaning. Modules are given their dtype when
    they are made, as above: torch cannot convert one without memory.
    """
    from spyre_backend.simulator import kernel, observe

    with upstream.fake_tensors(), kernel.only_counting(), observe() as observed:
        yield DryRun(observed, _before={id(each): each.runs for each in report.compilations})
