"""The decode sweep: causal LMs write token by token, with a cache that grows and with one of fixed size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from conformance.cases import Case, Direction, Options, Sample, ShapeMode
from models import sources, suite

LANES = ("dynamic-cache", "static-cache")


class DecodeSuite:
    """All causal LMs; see `conformance.cases.Suite`."""

    name = "decode"
    kind = "decode"
    expectations_dir = Path(__file__).with_name("expectations")
    sample_timeout = 600.0
    sample_memory = 6 << 30  # several copies, most of them in float64, and what a simulator holds beside them

    def cases(self, options: Options) -> Iterable[Case]:
        """A case for each cache, by subject."""
        if not _selected(options):
            return []
        return [
            Case(self.kind, each.name, dtype, ShapeMode.AUTOMATIC, Direction.FORWARD, lane)
            for each in sources.selected(options)
            if each.decodes and (options.subjects or sources.at_most(each.decode_tier, options.tier))
            for dtype in options.dtypes or each.dtypes or suite.DTYPES
            for lane in LANES
            if not options.lanes or lane in options.lanes
        ]

    def excluded(self, options: Options) -> Mapping[str, int]:
        """Nothing: each architecture that is selected is run."""
        return {}

    def samples(self, case: Case, options: Options) -> Iterator[Sample]:
        """One: a prefill and then steps. Raises as `ModelSuite.samples` does."""
        if case.lane not in LANES:
            raise ValueError(f"decoding has the lanes {', '.join(LANES)}, not {case.lane!r}")
        from models import samples

        yield from samples.of_decoding(case, sources.subject(case.subject, options), options.seed)


def _selected(options: Options) -> bool:
    modes, directions = options.shape_modes, options.directions
    return (not modes or ShapeMode.AUTOMATIC in modes) and (not directions or Direction.FORWARD in directions)
