"""Find a recorded sample again, to run it once more outside a sweep."""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from conformance import suites
from conformance.cases import Case, NotBuildable, Options, Sample, Tier


class NotThere(ValueError):
    """There is no such case or sample; the message is one line for the user."""


def parse(text: str) -> tuple[Case, int | None]:
    """Case and sample index of an id; without an index the first telling sample is meant."""
    try:
        return Case.parse(text)
    except ValueError as error:
        raise NotThere(str(error)) from None


def suite_of(case: Case) -> Any:
    """The installed suite that has cases of this kind."""
    found = [suites.find(name) for name in suites.names()]
    for suite in found:
        if suite.kind == case.kind:
            return suite
    kinds = ", ".join(sorted(suite.kind for suite in found)) or "none"
    raise NotThere(f"no installed suite has cases of the kind {case.kind!r} (there are: {kinds})")


def sample_of(suite: Any, case: Case, index: int | None, options: Options) -> Sample:
    """The sample itself, made anew with the seed and the files of `options`; imports torch. Raises `NotThere`."""
    # A sample by its number may come from any selection: what a tier leaves out of a case is looked through as well.
    wider = {"tier": Tier.SMOKE} if index is None else {"tier": Tier.NIGHTLY, "max_samples": sys.maxsize}
    try:
        last = None
        for sample in suite.samples(case, msgspec.structs.replace(options, **wider)):
            if index is None or sample.index == index:
                return sample
            last = sample.index
    except (ValueError, NotBuildable) as error:  # how a suite says that it does not know, or cannot make, the subject
        raise NotThere(f"{case}: {error}") from None
    if last is None:
        raise NotThere(f"the suite {suite.name!r} has no sample for {case}")
    raise NotThere(f"{case} has no sample {index}: the last one is {last}")
