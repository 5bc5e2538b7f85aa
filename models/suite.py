"""The model sweep: every architecture of the zoo, a forward at one size and at many, a few training steps."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.cases import Case, Direction, Options, Sample, ShapeMode, Tier
from models.subjects import Subject

TIERS = Path(__file__).with_name("tiers.toml")
DTYPES = ("float32",)
STATIC, DYNAMIC, AUTOMATIC = ShapeMode
FORWARD, BACKWARD = Direction


@dataclass(frozen=True)
class Variant:
    """One way to check a model."""

    mode: ShapeMode
    direction: Direction
    lane: str
    tier: Tier  # from which on it is run for every subject of the tier
    subjects: str = "*"  # glob over subjects that have it


VARIANTS = (
    Variant(STATIC, FORWARD, "samples", Tier.SMOKE),
    Variant(DYNAMIC, FORWARD, "samples", Tier.SMOKE),
    Variant(AUTOMATIC, FORWARD, "marked", Tier.PR),
    Variant(STATIC, FORWARD, "fullgraph", Tier.PR),
    Variant(STATIC, BACKWARD, "samples", Tier.PR),
)
"""In the order of the cases of a subject."""

ORDER = (Tier.SMOKE, Tier.PR, Tier.NIGHTLY)
NIGHTLY_REST = frozenset({(STATIC, FORWARD, "samples"), (DYNAMIC, FORWARD, "samples")})
"""What nightly runs for architectures that are in no smaller tier; more with --lane, --direction or --shape-mode."""


@functools.cache
def tiers() -> Mapping[str, Any]:
    """What tiers.toml says."""
    return tomllib.loads(TIERS.read_text())


def tier_of(subject: str) -> Tier:
    """The smallest tier that has the subject."""
    if subject in tiers()["smoke"]:
        return Tier.SMOKE
    return Tier.PR if subject in tiers()["pr"].values() else Tier.NIGHTLY


class ModelSuite:
    """All architectures; see `conformance.cases.Suite`."""

    name = "models"
    kind = "model"
    expectations_dir = Path(__file__).with_name("expectations")

    def cases(self, options: Options) -> Iterable[Case]:
        """All cases that `options` selects, by subject in alphabetical order."""
        return [case for case, reason in self._plan(options) if not reason]

    def excluded(self, options: Options) -> Mapping[str, int]:
        """Reason -> number of cases that are left to a wider selection."""
        return Counter(reason for _, reason in self._plan(options) if reason)

    def samples(self, case: Case, options: Options) -> Iterator[Sample]:
        """The samples of a case: #0 with other lengths where shapes are symbolic, #1 with other batches.

        Raises `NotBuildable` where the model cannot be made here, `ValueError` where there is no such subject or lane.
        """
        if case.lane not in {v.lane for v in VARIANTS if (v.mode, v.direction) == (case.shape_mode, case.direction)}:
            lanes = ", ".join(f"{v.mode}:{v.direction}:{v.lane}" for v in VARIANTS)
            raise ValueError(f"models have {lanes}, not {case.shape_mode}:{case.direction}:{case.lane}")
        from models import samples

        made = samples.of_forward(case, subject(case.subject), options.seed)
        yield from itertools.islice(made, options.max_samples)

    def manifest(self) -> Mapping[str, Any]:
        """What a report needs to know about what was swept."""
        from models.zoo import architectures

        return {"architectures": len(architectures.architectures())}

    def _plan(self, options: Options) -> Iterator[tuple[Case, str]]:
        for name in subjects(options):
            for dtype in options.dtypes or DTYPES:
                for v in VARIANTS:
                    if _asked_for(v, options):
                        yield Case(self.kind, name, dtype, v.mode, v.direction, v.lane), _why_not(v, name, options)


def subjects(options: Options) -> list[str]:
    """Names of the subjects that `options` selects: those of the tier, or all that are asked for by name."""
    from models.zoo import architectures

    known = architectures.architectures()
    if options.subjects:
        all_tasks = [f"{kind}.{task}" for kind, a in known.items() for task in architectures.distinct_tasks(a)]
        return [name for name in all_tasks if any(fnmatch.fnmatchcase(name, glob) for glob in options.subjects)]
    found = [f"{kind}.{a.main_task}" for kind, a in known.items()]
    return [name for name in found if ORDER.index(tier_of(name)) <= ORDER.index(options.tier)]


def subject(name: str) -> Subject:
    """The subject of that name; raises as `zoo_subjects.subject` does."""
    from models import zoo_subjects

    return zoo_subjects.subject(name)


def _asked_for(v: Variant, options: Options) -> bool:
    asked = ((options.shape_modes, v.mode), (options.directions, v.direction), (options.lanes, v.lane))
    return all(not wanted or value in wanted for wanted, value in asked)


def _why_not(v: Variant, name: str, options: Options) -> str:
    if ORDER.index(v.tier) > ORDER.index(options.tier):
        return f"{v.lane}, {v.mode}, {v.direction}: from the tier {v.tier} on"
    named = options.lanes or options.directions or options.shape_modes
    rest = tier_of(name) is Tier.NIGHTLY and (v.mode, v.direction, v.lane) not in NIGHTLY_REST
    return (
        f"{v.lane}, {v.mode}, {v.direction}: of the pr tier's architectures unless asked for"
        if rest and not named
        else ""
    )
