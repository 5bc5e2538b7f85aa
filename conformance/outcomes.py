"""The closed vocabulary of results, and the one total function that compares two of them.

Pure: imports neither torch nor anything else of the engine.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol


class Stage(StrEnum):
    """Where a sample ended, in the order in which a sample passes through them."""

    BUILD = "build"  # making the sample's inputs
    REFERENCE = "reference"  # running it on the CPU
    CAPTURE = "capture"  # Dynamo
    AUTOGRAD = "autograd"  # AOTAutograd
    DECOMPOSE = "decompose"  # decompositions
    LOWER = "lower"  # Inductor IR and scheduling
    CODEGEN = "codegen"  # kernels and wrapper
    RUN = "run"  # the compiled callable, on the device
    COMPARE = "compare"  # judged against the reference


class Outcome(StrEnum):
    """What became of a sample."""

    PASS = "pass"
    WRONG = "wrong"  # numbers or metadata differ from the reference
    UNSUPPORTED = "unsupported"  # a clear refusal
    ERROR = "error"  # any other exception
    CRASH = "crash"  # the process died
    TIMEOUT = "timeout"
    OOM = "oom"
    BUDGET = "budget"  # too many graph breaks, recompiles or fallbacks
    SKIPPED = "skipped"  # not run, with a reason
    INFRA = "infra"  # our own environment failed; never counted as the backend's


class Support(StrEnum):
    """How a backend runs an op in a dtype, as the README says. Ordered from best to worst."""

    NATIVE = "native"
    CUSTOM = "custom"  # a hand-written kernel
    DECOMPOSED = "decomposed"  # rewritten by upstream into ops that run on the device
    FALLBACK = "fallback"  # ran on the host; never counts as coverage
    UNSUPPORTED = "unsupported"
    WRONG = "wrong"


class Owner(StrEnum):
    """Whose failure it is. Set from evidence only; `UNDETERMINED` where there is none."""

    UPSTREAM = "upstream"
    BACKEND = "backend"
    USER_CODE = "user code"
    UNDETERMINED = "undetermined"


RAN = frozenset({Outcome.PASS, Outcome.WRONG, Outcome.BUDGET})
"""Outcomes in which the sample ran to the end."""

FAILED = frozenset(Outcome) - {Outcome.PASS, Outcome.SKIPPED}
"""Outcomes that need an expectation to be acceptable."""


OURS = frozenset({Stage.BUILD, Stage.REFERENCE, Stage.COMPARE})
"""Stages in which we work and the backend does not."""


TOO_LOOSE = "too loose to judge"
"""What a judge says of a result within a bound that could not have caught a wrong answer."""


class Judged(Protocol):
    """A `Record`, or a `Result`."""

    @property
    def outcome(self) -> Outcome: ...
    @property
    def stage(self) -> Stage | None: ...
    @property
    def fingerprint(self) -> str: ...


def is_undecided(result: Judged) -> bool:
    """Whether we could not tell: a failure, but one that says nothing about the backend.

    We ran out of time or memory ourselves, or no bound that we know tells right from wrong.
    """
    if result.outcome is Outcome.WRONG:
        return result.fingerprint.startswith(f"{Outcome.WRONG}:{TOO_LOOSE}")
    return result.outcome in (Outcome.TIMEOUT, Outcome.OOM) and result.stage in OURS


class Agreement(StrEnum):
    """How two backends did on the same sample (left, right)."""

    PARITY = "parity"
    ONLY_LEFT = "only-left"  # left passes, right does not
    ONLY_RIGHT = "only-right"
    BOTH_FAIL_SAME = "both-fail-same"
    BOTH_FAIL_DIFFERENTLY = "both-fail-differently"
    UNKNOWN = "unknown"  # at least one side was skipped, lost or infra


class Change(StrEnum):
    """How one backend did on the same sample before and after."""

    UNCHANGED = "unchanged"
    REGRESSED = "regressed"
    FIXED = "fixed"
    NEW = "new"
    GONE = "gone"
    CHANGED_FAILURE = "changed-failure"  # failed before and after, for another reason
    CHANGED_TEST = "changed-test"  # the sample's inputs changed: not comparable
    UNKNOWN = "unknown"


class Result(NamedTuple):
    """What the comparisons look at. An empty fingerprint or digest means that it is not known."""

    outcome: Outcome
    fingerprint: str = ""
    digest: str = ""  # hash of the inputs
    stage: Stage | None = None


class Standing(StrEnum):
    """What a result says once the reason for a failure is left out."""

    ABSENT = "absent"
    MUTE = "mute"  # skipped, undecided, or our own environment failed: says nothing about the backend
    PASSES = "passes"
    FAILS = "fails"


STANDINGS: dict[Outcome, Standing] = {
    Outcome.PASS: Standing.PASSES,
    Outcome.WRONG: Standing.FAILS,
    Outcome.UNSUPPORTED: Standing.FAILS,
    Outcome.ERROR: Standing.FAILS,
    Outcome.CRASH: Standing.FAILS,
    Outcome.TIMEOUT: Standing.FAILS,
    Outcome.OOM: Standing.FAILS,
    Outcome.BUDGET: Standing.FAILS,
    Outcome.SKIPPED: Standing.MUTE,
    Outcome.INFRA: Standing.MUTE,
}

_A, _M, _P, _F = Standing.ABSENT, Standing.MUTE, Standing.PASSES, Standing.FAILS

# (left, right) -> (agreement where both failed for the same reason or at most one failed, agreement otherwise)
_AGREEMENTS: dict[tuple[Standing, Standing], tuple[Agreement, Agreement]] = {
    (_A, _A): (Agreement.UNKNOWN, Agreement.UNKNOWN),
    (_A, _M): (Agreement.UNKNOWN, Agreement.UNKNOWN),
    (_A, _P): (Agreement.UNKNOWN, Agreement.UNKNOWN),
    (_A, _F): (Agreement.UNKNOWN, Agreement.UNKNOWN),
    (_M, _A): (Agreement.UNKNOWN, Agreement.UNKNOWN),
    (_M, _M): (Agreement.UNKNOWN, Agreement.UNKNOWN),
    (_M, _P): (Agreement.UNKNOWN, Agreement.UNKNOWN),
    (_M, _F): (Agreement.UNKNOWN, Agreement.UNKNOWN),
    (_P, _A): (Agreement.UNKNOWN, Agreement.UNKNOWN),
    (_P, _M): (Agreement.UNKNOWN, Agreement.UNKNOWN),
    (_P, _P): (Agreement.PARITY, Agreement.PARITY),
    (_P, _F): (Agreement.ONLY_LEFT, Agreement.ONLY_LEFT),
    (_F, _A): (Agreement.UNKNOWN, Agreement.UNKNOWN),
    (_F, _M): (Agreement.UNKNOWN, Agreement.UNKNOWN),
    (_F, _P): (Agreement.ONLY_RIGHT, Agreement.ONLY_RIGHT),
    (_F, _F): (Agreement.BOTH_FAIL_SAME, Agreement.BOTH_FAIL_DIFFERENTLY),
}

# (before, after) -> (change where the reason is the same or there is at most one, change otherwise)
_CHANGES: dict[tuple[Standing, Standing], tuple[Change, Change]] = {
    (_A, _A): (Change.UNKNOWN, Change.UNKNOWN),
    (_A, _M): (Change.NEW, Change.NEW),
    (_A, _P): (Change.NEW, Change.NEW),
    (_A, _F): (Change.NEW, Change.NEW),
    (_M, _A): (Change.GONE, Change.GONE),
    (_M, _M): (Change.UNKNOWN, Change.UNKNOWN),
    (_M, _P): (Change.UNKNOWN, Change.UNKNOWN),
    (_M, _F): (Change.UNKNOWN, Change.UNKNOWN),
    (_P, _A): (Change.GONE, Change.GONE),
    (_P, _M): (Change.UNKNOWN, Change.UNKNOWN),
    (_P, _P): (Change.UNCHANGED, Change.UNCHANGED),
    (_P, _F): (Change.REGRESSED, Change.REGRESSED),
    (_F, _A): (Change.GONE, Change.GONE),
    (_F, _M): (Change.UNKNOWN, Change.UNKNOWN),
    (_F, _P): (Change.FIXED, Change.FIXED),
    (_F, _F): (Change.UNCHANGED, Change.CHANGED_FAILURE),
}


def standing(result: Judged | None) -> Standing:
    """`None` is a sample that the run does not have."""
    if result is None:
        return Standing.ABSENT
    return Standing.MUTE if is_undecided(result) else STANDINGS[result.outcome]


def is_mute(result: Judged) -> bool:
    """Whether a sample says nothing about the backend: it was not run, or what went wrong is ours."""
    return standing(result) is Standing.MUTE


def _same_inputs(left: Result | None, right: Result | None) -> bool:
    """Unknown digests are given the benefit of the doubt: ids are stable, most samples too."""
    return left is None or right is None or not left.digest or not right.digest or left.digest == right.digest


def _same_reason(left: Result | None, right: Result | None) -> bool:
    return (
        left is not None
        and right is not None
        and left.outcome == right.outcome
        and left.fingerprint == right.fingerprint
    )


def compare(left: Result | None, right: Result | None) -> Agreement:
    """How two backends did on one sample. Results on different inputs cannot be set against each other: `UNKNOWN`."""
    if not _same_inputs(left, right):
        return Agreement.UNKNOWN
    same, different = _AGREEMENTS[standing(left), standing(right)]
    return same if _same_reason(left, right) else different


def change(before: Result | None, after: Result | None) -> Change:
    """How one backend did on one sample in two runs."""
    if not _same_inputs(before, after):
        return Change.CHANGED_TEST
    same, different = _CHANGES[standing(before), standing(after)]
    return same if _same_reason(before, after) else different
