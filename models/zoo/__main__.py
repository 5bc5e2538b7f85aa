"""`python -m models.zoo`: derives the recipes of all architectures, and says which there are and why others lack."""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict

from tabulate import tabulate

from conformance.globs import matches
from models.zoo import architectures, catalogue
from models.zoo.catalogue import Outcome
from models.zoo.recipe import model_class

Pair = tuple[str, str]


def _pairs(types: str, tasks: str | None, *, main_only: bool) -> list[Pair]:
    found = []
    for architecture in architectures.architectures().values():
        if matches(types, architecture.model_type):
            for task in architecture.tasks[:1] if main_only else architecture.tasks:
                if tasks is None or matches(tasks, task):
                    found.append((architecture.model_type, task))
    return found


def _preload(pairs: list[Pair]) -> None:
    """Imports the modelling modules here, so that not every child has to."""
    for model_type, task in pairs:
        try:
            model_class(model_type, architectures.class_name(model_type, task))
        except Exception:  # the child meets it again, and says so
            continue


def _kind(outcome: Outcome) -> str:
    if outcome.recipe is None:
        return "none"
    return "partial" if outcome.recipe.left_out else "full"


def _table(outcomes: dict[Pair, Outcome]) -> str:
    rows = []
    by_task: dict[str, list[str]] = defaultdict(list)
    for (_, task), outcome in outcomes.items():
        by_task[task].append(_kind(outcome))
    best: dict[str, str] = {}
    for (model_type, _), outcome in outcomes.items():
        best[model_type] = min(best.get(model_type, "none"), _kind(outcome), key=["full", "partial", "none"].index)
    groups = {**{task: by_task[task] for task in architectures.TASKS if task in by_task}}
    groups["all pairs"] = [kind for kinds in by_task.values() for kind in kinds]
    groups["model types, by their best task"] = list(best.values())
    for name, kinds in groups.items():
        full, partial = kinds.count("full"), kinds.count("partial")
        rows.append((name, len(kinds), full, partial, len(kinds) - full - partial, f"{100 * full / len(kinds):.1f} %"))
    return tabulate(rows, headers=("task", "classes", "full", "partial", "none", "full"))


def _rest(outcomes: dict[Pair, Outcome]) -> str:
    rows = []
    for (model_type, task), outcome in outcomes.items():
        if outcome.recipe is None:
            rows.append((model_type, task, outcome.reason[:160]))
        elif outcome.recipe.left_out:
            rows.append((model_type, task, f"without {', '.join(outcome.recipe.left_out)}"))
    return tabulate(rows, headers=("type", "task", "reason"), tablefmt="plain")


def _tied(outcomes: dict[Pair, Outcome]) -> str:
    recipes = {pair: outcome.recipe for pair, outcome in outcomes.items() if outcome.recipe}
    rows = [(*pair, recipe.ties) for pair, recipe in recipes.items() if recipe.ties]
    headers = ("type", "task", "depends on which of equal numbers is taken by")
    return tabulate(rows, headers=headers, tablefmt="plain") if rows else ""


def main(arguments: list[str] | None = None) -> int:
    """Prints the coverage of the zoo. Returns 0 if at least one recipe was found."""
    parser = argparse.ArgumentParser(prog="python -m models.zoo", description=__doc__)
    parser.add_argument("--type", default="*", metavar="GLOB", help="which model types")
    parser.add_argument("--task", default=None, metavar="GLOB", help="which tasks")
    parser.add_argument("--main", action="store_true", help="only the main task of each type")
    parser.add_argument("--fresh", action="store_true", help="derive again what is stored")
    chosen = parser.parse_args(arguments)
    pairs = _pairs(chosen.type, chosen.task, main_only=chosen.main)
    if not pairs:
        parser.error(f"no architecture has --type {chosen.type} and --task {chosen.task}")
    if chosen.fresh:
        catalogue.forget(pairs)
    _preload([pair for pair in pairs if not catalogue.is_stored(*pair)])
    outcomes: dict[Pair, Outcome] = {}
    started = time.monotonic()
    for number, pair in enumerate(pairs, start=1):
        outcomes[pair] = catalogue.outcome(*pair)
        if sys.stderr.isatty() or number % 100 == 0 or number == len(pairs):
            seconds = time.monotonic() - started
            end = "\n" if not sys.stderr.isatty() or number == len(pairs) else "\r"
            text = f"{number}/{len(pairs)} {'/'.join(pair)} {seconds:.0f} s"
            print(f"{text:<78}", end=end, file=sys.stderr, flush=True)
    print(_table(outcomes))
    if rest := _rest(outcomes):
        print(f"\n{rest}")
    if tied := _tied(outcomes):
        print(f"\n{tied}")
    return 0 if any(outcome.recipe for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
