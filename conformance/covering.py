"""Few readable globs that match given samples and none of others. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import combinations

from conformance import globs

SUBJECTS = 5  # so many subjects must share a cause before a glob leaves the subject open

_SUBJECT, _DTYPE, _INDEX = 1, 2, 6
_OPEN = (_SUBJECT, _DTYPE, 3, 4, 5, _INDEX)  # positions of an id that a glob may leave open; the kind stays
_Fields = tuple[str, ...]  # kind, subject, dtype, shape mode, direction, lane, sample index


class Avoided:
    """Samples that no glob may match. Kept for several covers, because a run has many of them."""

    def __init__(self, samples: Iterable[str]) -> None:
        self._all = {_fields(sample) for sample in samples}
        self._by_subject: dict[str, list[_Fields]] = defaultdict(list)
        for fields in self._all:
            self._by_subject[fields[_SUBJECT]].append(fields)
        self._open: dict[frozenset[int], set[_Fields]] = {}

    def projected(self, mask: frozenset[int], subjects: Iterable[str]) -> set[_Fields]:
        """What a glob of that mask must not be, where it has one of the subjects or leaves the subject open."""
        if _SUBJECT not in mask:
            return {_project(fields, mask) for subject in subjects for fields in self._by_subject.get(subject, ())}
        if mask not in self._open:
            self._open[mask] = {_project(fields, mask) for fields in self._all}
        return self._open[mask]


def cover(wanted: Iterable[str], avoid: Iterable[str] | Avoided, *, within: str = "") -> list[str]:
    """Globs that together match all sample ids of `wanted` and none of `avoid`, greedily few. Where a glob `within` is
    given, which covers all of `wanted`, they match nothing that it does not.

    Where several match equally many, a literal subject goes before an open one, then a literal dtype, then the shortest
    text: `op:sort:int64:*` rather than `op:sort:int64:static:fwd:samples#0`. What the run did not contain is thus
    expected to behave like what it did; the fingerprint of the entry limits that to the same cause.
    """
    targets = {_fields(sample) for sample in wanted}
    subjects = {fields[_SUBJECT] for fields in targets}
    avoided = avoid if isinstance(avoid, Avoided) else Avoided(avoid)
    masks = [frozenset(some) for size in range(len(_OPEN) + 1) for some in combinations(_OPEN, size)]
    if len(subjects) < SUBJECTS:
        masks = [mask for mask in masks if _SUBJECT not in mask]
    covers: dict[str, set[_Fields]] = {}
    ranks: dict[str, tuple[bool, bool, int, str]] = {}
    for mask in masks:
        taken = avoided.projected(mask, subjects)
        groups: dict[_Fields, set[_Fields]] = defaultdict(set)
        for fields in targets:
            groups[_project(fields, mask)].add(fields)
        for projection, members in groups.items():
            pattern = _pattern(projection)
            fits = not within or _is_within(pattern, within)
            if fits and projection not in taken and len(members) > len(covers.get(pattern, ())):
                covers[pattern] = members
                ranks[pattern] = (_SUBJECT in mask, _DTYPE in mask, len(pattern), pattern)
    return _greedy(targets, covers, ranks)


def _greedy(
    targets: set[_Fields], covers: dict[str, set[_Fields]], ranks: dict[str, tuple[bool, bool, int, str]]
) -> list[str]:
    chosen = []
    gains = Counter({pattern: len(members) for pattern, members in covers.items()})
    holders: dict[_Fields, list[str]] = defaultdict(list)
    for pattern, members in covers.items():
        for fields in members:
            holders[fields].append(pattern)
    left = set(targets)
    while left:
        best = min(gains, key=lambda pattern: (-gains[pattern], ranks[pattern]))
        chosen.append(best)
        for fields in covers[best] & left:
            for pattern in holders[fields]:
                gains[pattern] -= 1
        left -= covers[best]
    return sorted(chosen)


def _is_within(pattern: str, outer: str) -> bool:
    """Whether `outer` matches whatever `pattern` does: a `*` of `pattern` is matched by a `*` of `outer` alone."""
    text = pattern.replace("*", "\x00")
    return globs.matches(outer, text if "#" in outer else text.partition("#")[0])


def _fields(sample: str) -> _Fields:
    case, _, index = sample.partition("#")
    return (*case.split(":"), index)


def _project(fields: _Fields, mask: frozenset[int]) -> _Fields:
    return tuple("*" if position in mask else field for position, field in enumerate(fields))


def _pattern(projection: _Fields) -> str:
    *case, index = projection
    end = len(case)
    while case[end - 1] == "*":  # a `*` matches colons too; the kind is never open
        end -= 1
    text = ":".join(case[:end] + ["*"] * (end < len(case)))
    return text if index == "*" else f"{text}#{index}"
