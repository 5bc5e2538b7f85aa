"""The schema of results: one `Record` a sample, one `Manifest` a run. Pure; readers accept older schema versions."""

from __future__ import annotations

from typing import Any

import msgspec

from conformance.cases import Case
from conformance.outcomes import Outcome, Owner, Stage, Support

SCHEMA_VERSION = 1


class GraphBreak(msgspec.Struct, frozen=True):
    reason: str
    place: str  # "file.py:line", shortened to the package
    count: int = 1


class Recompile(msgspec.Struct, frozen=True):
    guard: str  # the guard that failed
    place: str = ""
    count: int = 1


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One sample on one backend. Seconds are wall-clock unless the name says `cpu`; sizes are bytes."""

    # identity
    sample: str  # the sample's id
    case: str
    kind: str
    subject: str
    dtype: str
    shape_mode: str
    direction: str
    lane: str
    index: int
    suite: str
    backend: str
    seed: int = 0
    digest: str = ""  # hash of the inputs; equal digests checked the same thing
    numerics: str = ""  # numerical class

    # result
    outcome: Outcome
    stage: Stage | None = None  # where it ended; None on a pass
    owner: Owner | None = None  # of a failure
    support: Support | None = None
    fingerprint: str = ""
    message: str = ""  # first lines of the error, or the finding in a sentence
    traceback: str = ""
    reason: str = ""  # why skipped, or what else needs saying
    rungs: dict[str, str] = {}  # ladder rung -> outcome, where the ladder was climbed
    culprit_module: str = ""  # of a model that fails: path of the smallest part that fails alone, and its class
    culprit_op: str = ""  # the first op of it that does

    # judgement
    compared: int = 0  # tensors compared with the reference
    error: float | None = None  # largest error, in units of the last place of the device's format
    slack: float | None = None  # largest error / allowed; <= 1 on a pass
    loosest: float | None = None  # largest allowed / RMS of the output: what could not have been caught
    measurements: dict[str, float] = {}  # figures that the sample takes of its results, by name

    # what really ran
    graphs: int | None = None
    breaks: list[GraphBreak] = []
    recompiles: list[Recompile] = []
    kernels: int | None = None
    custom_kernels: dict[str, int] = {}
    fallbacks: dict[str, int] = {}
    lowered: dict[str, int] = {}
    eager_ops: dict[str, int] = {}  # ATen overloads that eager dispatches to, before any decomposition
    traced: str = ""  # signatures of the calls in what was compiled, packed; read back by `conformance.traced`
    cache_hits: int | None = None
    cache_misses: int | None = None

    # cost
    reference_s: float | None = None
    compile_s: float | None = None
    compile_stages_s: dict[str, float] = {}
    run_s: float | None = None
    device_s: float | None = None  # by the device's own clock; simulated if the device is
    judge_s: float | None = None
    cpu_s: float | None = None  # CPU seconds of the whole sample
    backend_cpu_s: float | None = None  # CPU seconds of compile and run alone
    peak_memory: int | None = None  # of the process
    device_peak_memory: int | None = None

    # process
    exit_code: int | None = None
    signal: str = ""  # SIGSEGV, ...
    worker: str = ""
    started: float | None = None  # seconds since the epoch
    expectation: str = ""  # issue or position of the expectation that matched
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def of(cls, case: Case, index: int, *, suite: str, backend: str, outcome: Outcome, **fields: Any) -> Record:
        """A record of one sample, its identity filled from the case."""
        return cls(
            sample=case.sample_id(index),
            case=str(case),
            kind=case.kind,
            subject=case.subject,
            dtype=case.dtype,
            shape_mode=str(case.shape_mode),
            direction=str(case.direction),
            lane=case.lane,
            index=index,
            suite=suite,
            backend=backend,
            outcome=outcome,
            **fields,
        )


class Accounting(msgspec.Struct, kw_only=True):
    """Every case and every sample is somewhere: collected = run + skipped + lost."""

    cases_collected: int = 0
    cases_run: int = 0
    cases_skipped: dict[str, int] = {}  # reason -> cases
    cases_lost: list[str] = []
    samples_run: int = 0
    samples_skipped: dict[str, int] = {}
    samples_lost: list[str] = []
    excluded: dict[str, int] = {}  # reason -> cases that the suite leaves out on purpose
    deselected: int = 0


class Manifest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a run was: enough to repeat it and to say whether two runs may be compared."""

    run: str  # the run's id
    started: float
    finished: float | None = None
    complete: bool = False
    suites: list[str] = []
    backend: str = ""
    capabilities: dict[str, Any] = {}
    options: dict[str, Any] = {}
    versions: dict[str, str] = {}  # python, torch, transformers, backend, spyre-conformance, ...
    revision: str = ""  # git revision of this suite
    environment: dict[str, str] = {}
    suite_hash: str = ""  # of the case ids collected
    suite_facts: dict[str, dict[str, Any]] = {}  # suite -> what its `manifest()` says, e.g. all overloads that exist
    accounting: Accounting = msgspec.field(default_factory=Accounting)
    wall_s: float | None = None
    cpu_s: float | None = None
    records: int = 0
    torn_lines: int = 0  # lines that a dying process cut short
    schema_version: int = SCHEMA_VERSION
