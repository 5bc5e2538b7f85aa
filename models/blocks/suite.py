"""The block sweep: each distinct layer, attention, MLP and norm of all architectures once."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from conformance.cases import Case, Direction, Options, Sample, ShapeMode, Tier
from models import sources, suite
from models.blocks import catalogue

NOT_TAKEN_APART = "blocks of architectures not taken apart yet: `python -m models.blocks` does that to all"

TAKEN_APART: Mapping[Tier, Tier | None] = {Tier.SMOKE: None, Tier.PR: Tier.SMOKE, Tier.NIGHTLY: Tier.NIGHTLY}
"""Tier -> that whose architectures are taken apart in it: in the small ones whole models come first."""


class BlockSuite:
    """Blocks; see `conformance.cases.Suite`. A subject is a role and a hash of a graph: `mlp.1a2b3c4d`."""

    name = "blocks"
    kind = "block"
    expectations_dir = Path(__file__).parent.with_name("expectations")
    sample_memory = suite.ModelSuite.sample_memory

    def cases(self, options: Options) -> Iterable[Case]:
        """A case for each block that the architectures of the tier have, once however many have it."""
        wants = options.shape_modes, options.directions, options.lanes
        offers = ShapeMode.STATIC, Direction.FORWARD, "samples"
        if not all(not want or offer in want for want, offer in zip(wants, offers, strict=True)):
            return []
        return [
            Case(self.kind, key, dtype, ShapeMode.STATIC, Direction.FORWARD)
            for key in catalogue.homes(_known(options), options)
            if not options.subjects or any(fnmatch.fnmatchcase(key, glob) for glob in options.subjects)
            for dtype in options.dtypes or suite.DTYPES
        ]

    def excluded(self, options: Options) -> Mapping[str, int]:
        """Architectures whose blocks are not known yet."""
        unknown = len(subjects(options)) - len(_known(options))
        return {NOT_TAKEN_APART: unknown} if unknown else {}

    def samples(self, case: Case, options: Options) -> Iterator[Sample]:
        """One: the block in the first model that has it, fed what it gets there. Raises `ValueError` for no block."""
        from models import samples

        homes = catalogue.homes(_known(options), options).get(case.subject)
        if not homes:
            raise ValueError(f"no architecture that has been derived has a block {case.subject!r}")
        yield samples.of_block(case, sources.subject(homes[0].subject, options), homes[0].path, options.seed)

    def manifest(self, options: Options) -> Mapping[str, Any]:
        """Key of a block -> the subjects that have it."""
        homes = catalogue.homes(_known(options), options)
        return {"homes": {key: [home.subject for home in each] for key, each in homes.items()}}


def subjects(options: Options) -> list[str]:
    """The architectures that the tier takes apart."""
    import msgspec

    # A user's own models are checked whole: to find their blocks is to run them, while cases are collected.
    if options.models and not options.subjects:
        return []
    tier = TAKEN_APART[options.tier]
    if tier is None:
        return []
    # Globs of --op are over blocks here, and not over models.
    of_models = msgspec.structs.replace(options, tier=tier, subjects=(), models=())
    return [each.name for each in sources.selected(of_models)]


def _known(options: Options) -> list[str]:
    """Those of which collecting cases takes no minutes to find the blocks: of the dozen, and of what is stored."""
    dozen = sources.tiers()[Tier.SMOKE]
    return [name for name in subjects(options) if name in dozen or catalogue.is_stored(name)]
