"""The model sweep: every architecture of the zoo, a forward at one size and at many, a few training steps."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.cases import Case, Direction, Options, Sample, ShapeMode, Tier
from models import sources
from models.sources import Listed

DTYPES = ("float32",)
STATIC, DYNAMIC, AUTOMATIC = ShapeMode
FORWARD, BACKWARD = Direction


@dataclass(frozen=True)
class Variant:
    """One way to check a model."""

    mode: ShapeMode
    direction: Direction
    lane: str
    always: bool = False  # in each tier that has the subject


VARIANTS = (
    Variant(STATIC, FORWARD, "samples", always=True),
    Variant(DYNAMIC, FORWARD, "samples"),
    Variant(AUTOMATIC, FORWARD, "marked"),
    Variant(STATIC, FORWARD, "fullgraph"),
    Variant(STATIC, BACKWARD, "samples"),
)
"""In the order of the cases of a subject. Each compiles anew, so that the tiers are a matter of time."""


class ModelSuite:
    """All architectures; see `conformance.cases.Suite`."""

    name = "models"
    kind = "model"
    expectations_dir = Path(__file__).with_name("expectations")
    sample_timeout = 600.0
    sample_memory = 6 << 30  # several copies, most of them in float64, and what a simulator holds beside them

    def cases(self, options: Options) -> Iterable[Case]:
        """All cases that `options` selects, by subject in alphabetical order."""
        return [case for case, reason in self._plan(options) if not reason]

    def excluded(self, options: Options) -> Mapping[str, int]:
        """Reason -> number of cases that are left to a wider selection."""
        return Counter(reason for _, reason in self._plan(options) if reason)

    def samples(self, case: Case, options: Options) -> Iterator[Sample]:
        """The samples of a case: #0, and where shapes are symbolic #1 with a batch of one, which costs two graphs: in
        nightly of what smaller tiers have, or where the subject is asked for by name.

        Raises `NotBuildable` where the model cannot be made here, `ValueError` where there is no such subject or lane.
        """
        if case.lane not in {v.lane for v in VARIANTS if (v.mode, v.direction) == (case.shape_mode, case.direction)}:
            lanes = ", ".join(f"{v.mode}:{v.direction}:{v.lane}" for v in VARIANTS)
            raise ValueError(f"models have {lanes}, not {case.shape_mode}:{case.direction}:{case.lane}")
        from models import samples

        made = samples.of_forward(case, sources.subject(case.subject, options), options.seed)
        yield from itertools.islice(made, _max_samples(case.subject, options))

    def manifest(self, options: Options) -> Mapping[str, Any]:
        """What a report needs to know about what was swept."""
        from models import weighting
        from models.own import subjects
        from models.zoo import architectures

        own = subjects.facts(options)
        return {
            "architectures": len(architectures.architectures()),
            "own": own,
            "weights": weighting.weights({name: facts["priority"] for name, facts in own.items()}),
        }

    def check(self, options: Options) -> None:
        """Raises `ValueError`, which names file, line and key, where a file of the user's own models is wrong."""
        from models.own import declarations

        declarations.load(options.models)

    def _plan(self, options: Options) -> Iterator[tuple[Case, str]]:
        for each in sources.selected(options):
            for dtype in options.dtypes or each.dtypes or DTYPES:
                for v in VARIANTS:
                    if _asked_for(v, options):
                        case = Case(self.kind, each.name, dtype, v.mode, v.direction, v.lane)
                        yield case, _why_not(v, each, options)


def _max_samples(subject: str, options: Options) -> int | None:
    if options.max_samples is not None or options.subjects:
        return options.max_samples
    in_full = options.tier is Tier.NIGHTLY and sources.tier_of(subject, options) is not Tier.NIGHTLY
    return None if in_full else 1


def _asked_for(v: Variant, options: Options) -> bool:
    asked = ((options.shape_modes, v.mode), (options.directions, v.direction), (options.lanes, v.lane))
    return all(not wanted or value in wanted for wanted, value in asked)


def _why_not(v: Variant, subject: Listed, options: Options) -> str:
    if options.lanes or options.directions or options.shape_modes:
        return ""
    if v.mode is DYNAMIC:
        least = subject.dynamic_tier or subject.tier
        fits = options.subjects or sources.at_most(least, options.tier)
        return "" if fits else f"symbolic sizes: in the {least} tier, or where asked for"
    more = subject.more_tier
    fits = sources.at_most(more, options.tier) if more else sources.is_above(options.tier, subject.tier)
    return "" if v.always or fits else f"{v.lane}, {v.mode}, {v.direction}: in larger tiers, or where asked for"
