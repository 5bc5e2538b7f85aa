"""Control backend: eager, with one thing damaged in every sample. What is not caught, the suite cannot see."""

from __future__ import annotations

import contextlib
import difflib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from conformance.backends.eager import EagerBackend
from conformance.backends.protocol import BackendError

if TYPE_CHECKING:
    from conformance.backends.damages import Run

NAMES = (
    "element",
    "nan",
    "inf",
    "zero-sign",
    "dtype",
    "strides",
    "shape",
    "last-row",
    "swapped-outputs",
    "lost-mutation",
    "broken-alias",
    "extra-mutation",
    "gradient",
    "stale-replay",
)
"""The damages, by the name that the option `damage` takes; `damages.DAMAGES` has them (it imports torch)."""


class MutantBackend(EagerBackend):
    """Damages one observable thing a sample, chosen by its id.

    Options: `damage`, one of `NAMES`, instead of a choice; `seed`, another choice. Where the chosen damage does not
    apply (no NaN to lose) the next one is taken. What was done is in the notes of `observe()`: `mutation` is the name
    of the damage, or `none`, and `detail` says where, or why none applies.
    """

    name = "mutant"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        given = dict(options or {})
        self.seed = given.pop("seed", 0)
        self.only = given.pop("damage", None)
        if given:
            raise BackendError(f"backend 'mutant': no option {sorted(given)[0]!r}; there are damage and seed")
        if self.only is not None and self.only not in NAMES:
            near = difflib.get_close_matches(str(self.only), NAMES, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise BackendError(f"backend 'mutant': no damage {self.only!r}; {hint}there are {', '.join(NAMES)}")
        self.begin("")

    def capabilities(self) -> dict[str, Any]:
        return {**super().capabilities(), "notes": "a control: damages one thing in every sample, all must be caught"}

    def begin(self, sample_id: str, *, calls: int = 1) -> None:
        """Chooses the damage for the sample that follows."""
        # Seeding by a string is the same in every process and version, unlike hash().
        self.choose = random.Random(f"{self.seed}:{sample_id}")
        self.order = [self.only] if self.only else self.choose.sample(NAMES, len(NAMES))
        self.calls = calls
        self.made = 0
        self.first: list[Any] = []
        self.first_output: Any = None
        self.damage: str | None = None
        self.notes = {"mutation": "none", "detail": "nothing was called"}

    def compile(self, fn: Callable[..., Any], *, dynamic: bool | None, fullgraph: bool = False) -> Callable[..., Any]:
        import torch

        from conformance import trees
        from conformance.backends.damages import Run, is_plain

        def damaged(*args: Any, **kwargs: Any) -> Any:
            given = [leaf for _, leaf in trees.flatten((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            before = [t.detach().clone() if is_plain(t) else None for t in given]
            output = fn(*args, **kwargs)
            paths, leaves = zip(*trees.flatten(output, "output"), strict=True) if output is not None else ((), ())
            run = Run(given, before, list(paths), list(leaves), self.choose, self.made, self.calls, self.first)
            run.fired = self._fired
            if self.made == 0:
                self.first, self.first_output = list(leaves), output
            self._spoil(run)
            self.made += 1
            if run.use_first:
                return self.first_output
            left = iter(run.leaves)
            return trees.map_leaves(output, lambda _path, _leaf: next(left)) if leaves else output

        return damaged

    @contextlib.contextmanager
    def observe(self) -> Iterator[dict[str, Any]]:
        seen: dict[str, Any] = {}
        try:
            yield seen
        finally:
            seen["notes"] = dict(self.notes)

    def _spoil(self, run: Run) -> None:
        from conformance.backends.damages import DAMAGES, LATER

        if self.damage is not None:  # the same damage in every call of the sample, where it applies again
            DAMAGES[self.damage].apply(run)
            return
        if self.made:
            return
        for name in self.order:
            detail = DAMAGES[name].apply(run)
            if detail is not None:
                self.damage = name
                if name in LATER:
                    self.notes = {"mutation": "none", "detail": f"{name} was chosen, but its occasion did not come"}
                else:
                    self.notes = {"mutation": name, "detail": detail}
                return
        needs = "; ".join(f"{name} needs {DAMAGES[name].needs}" for name in self.order)
        self.notes = {"mutation": "none", "detail": f"nothing to damage: {needs}"}

    def _fired(self, detail: str) -> None:
        self.notes = {"mutation": str(self.damage or self.order[0]), "detail": detail}
