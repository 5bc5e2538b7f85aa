"""The closed vocabulary of results, and the one total function that compares two of them.

Pure: imports neither torch nor anything else of the engine.
"""

from __future__ import annotations

from enum import StrEnum


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
    """How a backend runs an op in a dtype; see DESIGN section 2. Ordered from best to worst."""

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
