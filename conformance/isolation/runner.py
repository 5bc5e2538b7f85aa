"""The process in which samples run, one case after another, until it is told to stop or dies of a sample.

Forked by the zygote of `child`. The supervisor writes the start of a sample to disk before the runner begins it, and
kills the runner when a limit is reached.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from conformance import fingerprints
from conformance.cases import NotBuildable, UserFault
from conformance.isolation import memory, process, wire
from conformance.outcomes import Outcome, Owner, Stage
from conformance.records import Record

STAGES = tuple(Stage)
STAGE_BYTES = 1  # size of the memory shared with the supervisor: the index in STAGES of the stage in flight


def executor_of(suite: Any) -> Callable[..., Record]:
    """What runs a sample: the suite's own `run_sample` where it has one, else the engine's."""
    own = getattr(suite, "run_sample", None)
    if own is not None:
        return own
    from conformance import execute

    return execute.run_sample


class _Gone(Exception):
    """The supervisor is gone."""


class Runner:
    """Runs cases in a process of its own; whatever happens to it costs the sample in flight."""

    def __init__(
        self, backend: Any, suites: Mapping[str, Any], stage: mmap.mmap, channel: wire.Channel, *, must_set_up: bool
    ) -> None:
        self.backend = backend
        self.suites = suites
        self.stage = stage
        self.channel = channel
        self.must_set_up = must_set_up
        self.pid = os.getpid()
        self.memory_limit = 0  # bytes that a sample may map; 0: any
        self.traces = os.dup(2)

    def prepare(self) -> None:
        os.setsid()  # the supervisor kills the whole group, compilers and all
        process.die_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # hundreds of crashes must not fill the disk

    def serve(self) -> None:
        try:
            if self.must_set_up:
                self.backend.setup()
        except Exception as error:
            reason = f"backend {self.backend.name!r} cannot be set up: {process.one_line(error)}"
            self.channel.send(wire.Failed(reason, traceback.format_exc()))
            return
        self.channel.send(wire.Ready())
        while True:
            try:
                request = self.channel.receive()
            except EOFError:
                return
            samples = self.run_case(request)
            faulthandler.cancel_dump_traceback_later()
            self.channel.send(wire.CaseDone(samples, process.rss()))
            self._reset()
            self.channel.send(wire.Ready())

    def on_stage(self, stage: Stage) -> None:
        self.stage[0] = STAGES.index(stage)

    def run_case(self, request: wire.RunCase) -> int:
        """Run the samples from index `request.first` on; returns how many samples the case has.

        Indices rise, but need not be consecutive: a tier may choose among the samples.
        """
        suite = self.suites[request.suite]
        count, last = 0, -1
        self._begin_build(request)
        try:
            for sample in suite.samples(request.case, request.options):
                if sample.index <= last:
                    raise ValueError(f"the suite gives sample {sample.index} after sample {last}")
                last = sample.index
                count += 1
                if last < request.first or last in request.skip:
                    continue
                self._announce(wire.Starting(last, sample.digest, str(sample.numerics)))
                self._send_record(self._run_sample(request, suite, sample))
                self._begin_build(request)
        except _Gone:
            raise
        except NotBuildable as error:
            self._send_record(self._not_buildable(request, last + 1, error))
            count += 1
        except BaseException as error:
            # A generator that raised has ended: how many samples would have followed is not known.
            self._exit_if_forked()
            index = last + 1
            if index >= request.first and index not in request.skip:  # else it is recorded already
                self._send_record(self._escaped(request, index, error))
            count += 1
        return count

    def _announce(self, starting: wire.Starting) -> None:
        """Wait until the start of a sample is on disk."""
        try:
            self.channel.send(starting)
            self.channel.receive()
        except (OSError, EOFError) as error:
            raise _Gone from error

    def _begin_build(self, request: wire.RunCase) -> None:
        self.memory_limit = request.memory_limit
        self._limit_memory()  # before the watchdog, whose thread the sample before may have left no memory for
        self._watch(request.time_limit)
        self.on_stage(Stage.BUILD)

    def _limit_memory(self) -> None:
        """Anew for each sample: what earlier ones left mapped (thread stacks, arenas) is not this one's doing."""
        if self.memory_limit:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            soft = process.data_size() + self.memory_limit
            limit = soft if hard == resource.RLIM_INFINITY else min(soft, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))

    def _run_sample(self, request: wire.RunCase, suite: Any, sample: Any) -> Record:
        self.on_stage(Stage.REFERENCE)
        try:
            record = executor_of(suite)(
                self.backend,
                request.case,
                sample,
                suite=suite.name,
                seed=request.options.seed,
                on_stage=self.on_stage,
            )
        except BaseException as error:  # SystemExit and KeyboardInterrupt of a sample are its own
            record = self._escaped(request, sample.index, error)
            record.digest, record.numerics = sample.digest, str(sample.numerics)
        self._exit_if_forked()
        if record.outcome is Outcome.ERROR and memory.is_exhausted(record.message):
            record.outcome = Outcome.OOM
        return record

    def _not_buildable(self, request: wire.RunCase, index: int, error: NotBuildable) -> Record:
        return Record.of(
            request.case,
            index,
            suite=self.suites[request.suite].name,
            backend=self.backend.name,
            outcome=Outcome.SKIPPED,
            seed=request.options.seed,
            reason=" ".join(str(error).split()),
        )

    def _escaped(self, request: wire.RunCase, index: int, error: BaseException) -> Record:
        """A record of an exception that nothing else has judged."""
        stage = STAGES[self.stage[0]]
        outcome, reason = Outcome.ERROR, ""
        if isinstance(error, MemoryError) or memory.is_exhausted(str(error)):
            outcome = Outcome.OOM
        elif stage is Stage.BUILD:
            reason = "the sample could not be built, and so no sample after it"
        elif isinstance(error, Exception):
            outcome, reason = Outcome.INFRA, "the engine itself failed"
        return Record.of(
            request.case,
            index,
            suite=self.suites[request.suite].name,
            backend=self.backend.name,
            outcome=outcome,
            stage=stage,
            owner=Owner.USER_CODE if isinstance(error, UserFault) else Owner.UNDETERMINED,
            seed=request.options.seed,
            fingerprint=fingerprints.of_exception(error, op=request.case.subject, stage=stage),
            message=process.one_line(error),
            traceback="".join(traceback.format_exception(error)),
            reason=reason,
        )

    def _send_record(self, record: Record) -> None:
        try:
            body = _record_encoder.encode(record)
        except (TypeError, ValueError) as error:  # e.g. a NumPy scalar in a measurement
            record = Record(
                **{name: getattr(record, name) for name in _IDENTITY},
                outcome=Outcome.INFRA,
                stage=record.stage,
                message=f"the record cannot be written: {process.one_line(error)}",
            )
            body = _record_encoder.encode(record)
        try:
            self.channel.send(wire.Recorded(msgspec.Raw(body)))
        except OSError as error:
            raise _Gone from error

    def _watch(self, limit: float) -> None:
        """Write all stacks when the limit is reached. The watchdog is a C thread: it needs neither the GIL nor signals,
        so a hang in C with all signals blocked is seen too. The supervisor kills."""
        faulthandler.dump_traceback_later(limit, exit=False, file=self.traces)

    def _reset(self) -> None:
        reset = getattr(self.backend, "reset", None)
        if reset is not None:
            reset()
        elif "torch" in sys.modules:
            sys.modules["torch"].compiler.reset()

    def _exit_if_forked(self) -> None:
        if os.getpid() != self.pid:
            os._exit(0)  # the sample forked and its child came back to us


_IDENTITY = Record.__struct_fields__[: Record.__struct_fields__.index("outcome")]
_record_encoder = msgspec.msgpack.Encoder(enc_hook=lambda value: value.item())
