"""What is checked: cases, samples, and the suites that provide them.

A case is `kind:subject:dtype:shape_mode:direction:lane`; a sample adds `#index`. Ids are stable across runs and
versions; they are what expectations match, what pytest shows and what a repro is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from conformance.budgets import Budgets


class ShapeMode(StrEnum):
    """How shapes are compiled: every size a constant; every size symbolic from the start; or, as `torch.compile` does
    when it is told nothing, constants first, and symbols for what is marked dynamic or has changed."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    AUTOMATIC = "automatic"

    @property
    def dynamic(self) -> bool | None:
        """The argument of `torch.compile`."""
        return {ShapeMode.STATIC: False, ShapeMode.DYNAMIC: True, ShapeMode.AUTOMATIC: None}[self]


class Direction(StrEnum):
    """Forward alone, or forward and backward."""

    FORWARD = "fwd"
    BACKWARD = "bwd"


class Tier(StrEnum):
    """How much is run."""

    SMOKE = "smoke"
    PR = "pr"
    NIGHTLY = "nightly"


class Case(msgspec.Struct, frozen=True, order=True):
    """Identity of one checked thing. `str(case)` is its id.

    `dtype` is the torch name without the prefix (`float16`).
    """

    kind: str
    subject: str
    dtype: str
    shape_mode: ShapeMode
    direction: Direction
    lane: str = "samples"

    def __str__(self) -> str:
        return f"{self.kind}:{self.subject}:{self.dtype}:{self.shape_mode}:{self.direction}:{self.lane}"

    def sample_id(self, index: int) -> str:
        return f"{self}#{index}"

    @classmethod
    def parse(cls, text: str) -> tuple[Case, int | None]:
        """Inverse of `str` and `sample_id`: `(case, sample index or None)`.

        Raises `ValueError` that says what a case id looks like.
        """
        body, hash_, index = text.partition("#")
        parts = body.split(":")
        try:
            kind, subject, dtype, shape_mode, direction, lane = parts
            case = cls(kind, subject, dtype, ShapeMode(shape_mode), Direction(direction), lane)
            return case, int(index) if hash_ else None
        except ValueError:
            raise ValueError(
                f"{text!r} is not a case id; one looks like "
                "kind:subject:dtype:static|dynamic|automatic:fwd|bwd:lane[#sample], "
                "e.g. op:add:float16:static:fwd:samples#0"
            ) from None


class Options(msgspec.Struct, frozen=True):
    """What to sweep: the selection that a user makes on the command line. Empty means no restriction."""

    tier: Tier = Tier.SMOKE
    dtypes: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()  # globs over the subject
    shape_modes: tuple[ShapeMode, ...] = ()
    directions: tuple[Direction, ...] = ()
    lanes: tuple[str, ...] = ()
    seed: int = 0
    max_samples: int | None = None  # cap per case; None: what the tier says
    models: tuple[str, ...] = ()  # absolute paths of files that declare models of the user's own
    traced: str | None = None  # run or file with calls that were traced out of models; None: the newest run with some


class NumericalClass(StrEnum):
    """What kind of error an op may make; see docs/how-results-are-judged.md."""

    EXACT = "exact"
    ELEMENTWISE = "elementwise"
    CONTRACTION = "contraction"
    COMPOSITE = "composite"
    PROPERTY = "property"


@dataclass(frozen=True)
class Tolerance:
    """A bound that somebody declared, in place of the one that follows from the numerical class: the larger of the
    two. What could not have caught a wrong answer is no pass even so."""

    ulps: float = 0.0  # units in the last place of the device's format, at the exact result
    atol: float = 0.0

    def __str__(self) -> str:
        said = [f"{name} {value:g}" for name, value in vars(self).items() if value]
        return f"tolerance declared: {', '.join(said)}"


@dataclass(frozen=True)
class Sample:
    """One call to check. Everything is on the CPU and reproducible from the case, the index and the seed.

    The judged call is `fn(*args, **kwargs)`; it returns a pytree of tensors and plain values. In the backward direction
    the engine itself sets requires_grad on the floating and complex inputs that `differentiable` names and calls
    autograd. `fn` may be a `torch.nn.Module`: each run gets a copy, with its parameters and buffers on the device.

    With `drive` the judged call is `drive(fn, *args, **kwargs)`, in which only `fn` is compiled: a decode loop, say, or
    training steps. It differentiates itself what it wants differentiated, in either direction.
    """

    index: int
    fn: Callable[..., Any]  # what is compiled
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    numerics: NumericalClass
    digest: str  # hash of fn's identity and all inputs: two runs with equal digests checked the same thing
    source: str  # Python expression for the callable in a repro script, e.g. "torch.nn.functional.softmax"
    setup: str = ""  # Python statements before it, on which the expression relies
    drive_source: str = ""  # the judged call, of `call`, `args` and `kwargs`, where there is a drive; empty: unknown
    differentiable: tuple[int, ...] | None = None  # positions among flattened tensor inputs; None: as they come
    on_cpu: tuple[int, ...] = ()  # positions among flattened tensor inputs that the callable wants on the CPU always
    drive: Callable[..., Any] | None = None  # the judged call, given the compiled callable first; None: call it
    fullgraph: bool = False  # compile so that a graph break is an error
    budgets: Budgets = field(default_factory=Budgets)
    replays: tuple[tuple[tuple[Any, ...], Mapping[str, Any]], ...] = ()  # further calls of the same compiled callable
    exact_fn: Callable[..., Any] | None = None  # for the float64 run: fn with its dtype-dependent defaults resolved
    check: Callable[..., str | None] | None = None  # property class: (inputs, output, reference) -> complaint or None
    contraction_length: Callable[..., int] | None = None  # n of the bound, from (args, kwargs); None: estimated
    ulps: float | None = None  # elementwise class: allowed units in the last place; None: the judge's default
    tolerance: Tolerance | None = None  # of every floating result; None: what its class says
    strides: bool = True  # whether those of results are judged
    postprocess: Callable[[Any], Any] | None = None  # applied to results of both sides before comparing
    measure: Callable[[Any, Any, Any], Mapping[str, float]] | None = None
    """Figures for the record, which judge nothing: from the result of the first call, what the CPU gave in the same
    dtype, and what it gave in float64 (None where it gave nothing)."""
    notes: Mapping[str, Any] = field(default_factory=dict)  # `models`: names of models that make this call


class NotBuildable(Exception):
    """A case that the suite has and cannot make here, a package being absent, say. The message is the reason: its
    samples are skipped with it."""


class UserFault(ValueError):
    """What a user gave to be checked (a model, a factory) does not work of itself. The message says what would be
    right; the samples end in `error` while they are built, and the owner of that is the user's code."""


class Suite(Protocol):
    """Provides cases; found by the entry-point group `conformance.suites`. Runs in the supervised child."""

    name: str
    kind: str  # first part of its case ids

    def cases(self, options: Options) -> Iterable[Case]:
        """All cases that `options` selects, cheaply: no inputs are made. Order is stable."""
        ...

    def samples(self, case: Case, options: Options) -> Iterator[Sample]:
        """The samples of a case in index order, made lazily. Raises `NotBuildable` and `UserFault`."""
        ...

    def excluded(self, options: Options) -> Mapping[str, int]:
        """Reason -> number of cases left out on purpose, for the accounting."""
        ...


class DescribedSuite(Suite, Protocol):
    """Optional members of a suite."""

    expectations_dir: Path  # holds BACKEND.toml, the expectations of this suite
    sample_timeout: float  # seconds that a sample may take where the user sets no limit
    sample_memory: int  # bytes, likewise

    def manifest(self, options: Options) -> Mapping[str, Any]:
        """Facts about what was swept that a report needs, as plain values for `Manifest.suite_facts`."""
        ...

    def check(self, options: Options) -> None:
        """Raise `ValueError`, one line for the user, for files that `options` names and that cannot be used. Called
        before anything is run, where there is no torch."""
        ...
