"""What fixing ops would unlock: the models whose blockers they are, alone and together. Pure.

Nothing here knows where blockers come from (`blockers` does); a model is unlocked when all that blocks it is fixed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

Blockers = Mapping[str, frozenset[str]]
"""Model -> what blocks it; never empty."""

Weights = Mapping[str, float]
"""Model -> what it counts; a model that is missing counts 1."""


def unlocked(blockers: Blockers, fixed: Collection[str]) -> frozenset[str]:
    """The models that have no blocker but those that are fixed."""
    done = frozenset(fixed)
    return frozenset(model for model, needed in blockers.items() if needed <= done)


def total(models: Iterable[str], weights: Weights) -> float:
    """The weight of models together."""
    return sum(weights.get(model, 1.0) for model in models)


class Unlock(NamedTuple):
    """A set of blockers, and the models that fixing it unlocks. `exact`: nothing of its size unlocks more."""

    fixed: frozenset[str]
    models: frozenset[str]
    weight: float
    exact: bool = True


class Alone(NamedTuple):
    """One blocker: the models that it alone blocks, and all that it blocks among others."""

    op: str
    models: frozenset[str]
    weight: float
    waiting: frozenset[str]
    waiting_weight: float


def alone(blockers: Blockers, weights: Weights) -> list[Alone]:
    """Each blocker; the one that unlocks most by itself first, and then the one that most models wait for."""
    waiting: dict[str, set[str]] = defaultdict(set)
    for model, needed in blockers.items():
        for op in needed:
            waiting[op].add(model)
    found = []
    for op, models in waiting.items():
        freed = frozenset(model for model in models if len(blockers[model]) == 1)
        found.append(Alone(op, freed, total(freed, weights), frozenset(models), total(models, weights)))
    return sorted(found, key=lambda each: (-each.weight, -each.waiting_weight, each.op))


def smallest_sets(blockers: Blockers, weights: Weights) -> list[Unlock]:
    """The sets of which every op is needed for some one model: that model's blockers, with all models that they unlock.

    By weight of each op in them, then by weight.
    """
    found = []
    for needed in set(blockers.values()):
        models = unlocked(blockers, needed)
        found.append(Unlock(needed, models, total(models, weights)))
    return sorted(found, key=lambda each: (-each.weight / len(each.fixed), -each.weight, sorted(each.fixed)))


STEPS = 100_000
"""How many choices the exact search looks at before it is content with what it has found."""


def best(blockers: Blockers, weights: Weights, size: int, start: Unlock | None = None, steps: int = STEPS) -> Unlock:
    """At most `size` blockers that together unlock most.

    Exact where the search ends in time, else at least as good as the greedy choice and as `start`.
    """
    groups: dict[frozenset[str], float] = defaultdict(float)
    for model, needed in blockers.items():
        if len(needed) <= size:
            groups[needed] += weights.get(model, 1.0)
    order = sorted(groups, key=lambda needed: (-groups[needed] / len(needed), sorted(needed)))
    found = [greedy(blockers, weights, size), *([start] if start is not None and len(start.fixed) <= size else [])]
    incumbent = max(found, key=lambda each: each.weight)
    top, chosen = incumbent.weight, incumbent.fixed
    left = steps

    def search(at: int, fixed: frozenset[str], gained: float, open_weight: float) -> None:
        nonlocal top, chosen, left
        left -= 1
        if gained > top + 1e-9:
            top, chosen = gained, fixed
        if left <= 0 or at == len(order) or gained + open_weight <= top + 1e-9:
            return
        needed = order[at]
        rest = open_weight - groups[needed]
        with_it = fixed | needed
        if len(with_it) <= size:
            search(at + 1, with_it, gained + groups[needed], rest)
        if not needed <= fixed:
            search(at + 1, fixed, gained, rest)

    search(0, frozenset(), 0.0, sum(groups.values()))
    models = unlocked(blockers, chosen)
    return Unlock(chosen, models, total(models, weights), exact=left > 0)


def greedy(blockers: Blockers, weights: Weights, size: int) -> Unlock:
    """At most `size` blockers, chosen model by model: next the one that gains most weight for each op that it needs."""
    fixed: frozenset[str] = frozenset()
    while True:
        options = {needed - fixed for needed in blockers.values() if 0 < len(needed - fixed) <= size - len(fixed)}
        if not options:
            break
        done = total(unlocked(blockers, fixed), weights)
        fixed |= max(
            options,
            key=lambda more: (
                (total(unlocked(blockers, fixed | more), weights) - done) / len(more),
                sorted(more),
            ),
        )
    models = unlocked(blockers, fixed)
    return Unlock(fixed, models, total(models, weights), exact=False)


def plan(blockers: Blockers, weights: Weights, sizes: int) -> list[Unlock]:
    """The best sets of 1, 2, ... ops, up to `sizes`, as long as a further op unlocks more."""
    most = len(frozenset().union(*blockers.values())) if blockers else 0
    found: list[Unlock] = []
    for size in range(1, min(sizes, most) + 1):
        each = best(blockers, weights, size, start=found[-1] if found else None)
        if not found or each.weight > found[-1].weight:
            found.append(each)
    return [each for each in found if each.weight > 0]


# --- weights ----------------------------------------------------------------------------------------------------------


def weigh(models: Iterable[str], patterns: Mapping[str, float]) -> dict[str, float]:
    """Model -> weight: that of its own name, else of the first pattern that matches, else 1."""
    return {
        model: patterns.get(model, next((w for glob, w in patterns.items() if fnmatchcase(model, glob)), 1.0))
        for model in models
    }
