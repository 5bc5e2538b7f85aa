"""Run cases in a supervised child, so that whatever a sample does to its process costs that sample alone.

    worker (no torch)  --control socket-->  zygote (torch, backend, suite)
          \\------------ socket -----------  runner (forked; runs samples) --'

The supervisor lives in the pytest worker, in its only thread. It asks the zygote for a runner, gives the runner a case,
and follows it: each sample is written to the run's log before it starts (the runner waits for that), its record after
it. When the runner dies, hangs or grows too large, the sample in flight gets a record that says so and the next runner
goes on at the sample after it. No exception, signal or output of a sample reaches the worker.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

import msgspec

from conformance import fingerprints
from conformance.cases import Case, Options
from conformance.isolation import deaths, wire
from conformance.isolation.child import Plan, environment, interpreter_arguments
from conformance.isolation.deaths import Death, Killed
from conformance.isolation.following import Output, Progress, Runner, kill_group
from conformance.isolation.runner import STAGE_BYTES, STAGES
from conformance.outcomes import Outcome, Stage
from conformance.records import Record

START_LIMIT = 900.0  # seconds for a zygote to import everything; a backend's first use may compile C++
WARM_UP_LIMIT = 180.0
START_ATTEMPTS = 3  # zygotes that may die one after another without running anything
STACK_LIMIT = 2.0  # seconds that a hung runner gets to write its stacks
POLL = 0.2  # seconds between looks at the clock and at the memory of a runner that says nothing
DEFAULT_TIME_LIMIT = 120.0
DEFAULT_MEMORY_LIMIT = 2 << 30
RECYCLE_CASES = 400  # a runner is replaced after so many cases ...
RECYCLE_RSS = 1 << 30  # ... or when it has grown by so many bytes


class CannotStart(Exception):
    """The zygote does not start, so nothing can run; the message is for the user, `detail` is a traceback."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


class Limits(msgspec.Struct, frozen=True):
    """What a sample may take. 0: no limit on memory."""

    seconds: float | None = None  # None: what the suite says, or the default
    memory: int | None = None  # bytes above the zygote's own; None: what the suite says, or the default


class Writer(Protocol):
    """Where starts and records go; `store.RunWriter` is one."""

    def start(self, sample: str) -> None: ...

    def record(self, record: Record) -> None: ...

    def case_done(self, case: str, samples: int = 0, reason: str = "") -> None: ...


class _ZygoteDied(Exception):
    pass


def _may_leave_damage(record: Record) -> bool:
    """Whether the process is not to be trusted after this sample: a device on which a launch failed may refuse all that
    follow, and an allocator that ran dry may have left anything half done. A fork costs less than a false alarm."""
    return record.outcome is Outcome.OOM or (record.outcome is Outcome.ERROR and record.stage is Stage.RUN)


class Supervisor:
    """Owns a zygote and at most one runner. Not thread-safe.

    `log` is the file to which everything goes that the children print. `worker` is written into the records.
    """

    def __init__(
        self,
        plan: Plan,
        options: Options,
        *,
        log: Path,
        limits: Limits | None = None,
        worker: str = "",
        warm_up: bool = True,
    ) -> None:
        self.plan = plan
        self.options = options
        self.limits = limits or Limits()
        self._seconds = DEFAULT_TIME_LIMIT  # of a sample of the case in hand
        self._memory = DEFAULT_MEMORY_LIMIT  # likewise
        self.worker = worker
        self.hello: wire.Hello | None = None
        self.restarts = 0  # of the zygote
        self.forks = 0
        self._warm_up = warm_up
        self._warming = False
        self._suites: dict[str, wire.CaseList] = {}
        self._zygote: subprocess.Popen[bytes] | None = None
        self._control: wire.Channel | None = None
        self._runner: Runner | None = None
        self._selector = selectors.DefaultSelector()
        self._output = Output(log)
        self._stage_fd = os.memfd_create("conformance-stage")
        os.ftruncate(self._stage_fd, STAGE_BYTES)
        self._stage = mmap.mmap(self._stage_fd, STAGE_BYTES)

    # ------------------------------------------------------------------------------------------------- the zygote

    def start(self) -> wire.Hello:
        """Start the zygote if it does not run. Raises `CannotStart`."""
        if self._zygote is not None and self.hello is not None:
            return self.hello  # the last one is kept when its zygote has died: the backend is the same
        hello = self._spawn(self.plan)
        if hello.threads > 1 and self.plan.fork_safe is None:
            # A fork copies one thread; locks that the others hold stay locked for ever. Set up after the fork instead.
            self._output.note(f"the backend's setup started {hello.threads - 1} threads: it will run in each runner")
            self._stop_zygote()
            self.plan = msgspec.structs.replace(self.plan, fork_safe=False)
            hello = self._spawn(self.plan)
        self.hello = hello
        return hello

    def cases(self, suite: str) -> wire.CaseList:
        """The cases that the options select. Raises `CannotStart` when backend or suite cannot be used."""
        self.start()
        if suite not in self._suites:
            self._suites[suite] = self._list(suite, self.options)
        return self._suites[suite]

    def list_with(self, suite: str, options: Options) -> tuple[Case, ...]:
        """The cases that other options than ours would select."""
        return self._list(suite, options).cases

    def warm_up(self) -> None:
        """Have the zygote compile something trivial while we do other things; the first runner waits for it."""
        if self._warm_up and not self._warming and self._runner is None:
            self._request(wire.WarmUp())
            self._warming = True

    def note(self, text: str) -> None:
        """Write something into the log."""
        self._output.note(text)

    def close(self) -> None:
        """Kill everything. Idempotent."""
        self._drop_runner()
        self._stop_zygote()
        self._output.close()
        self._selector.close()
        if self._stage_fd >= 0:
            self._stage.close()
            os.close(self._stage_fd)
            self._stage_fd = -1

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spawn(self, plan: Plan) -> wire.Hello:
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        with theirs:
            plan = msgspec.structs.replace(plan, control_fd=theirs.fileno(), stage_fd=self._stage_fd)
            try:
                self._zygote = subprocess.Popen(
                    interpreter_arguments(plan),
                    stdin=subprocess.DEVNULL,
                    stdout=write_end,
                    stderr=write_end,
                    env=environment(os.environ),
                    pass_fds=(theirs.fileno(), self._stage_fd),
                    start_new_session=True,  # a Ctrl-C is for the supervisor, which then stops its children
                )
            finally:
                os.close(write_end)
        self._control = wire.Channel(ours, sender="child")
        self._output.attach(read_end)
        self._selector.register(read_end, selectors.EVENT_READ, self._output)
        self._selector.register(ours, selectors.EVENT_READ, self._control)
        try:
            return self._answer(wire.Hello, START_LIMIT)
        except _ZygoteDied as death:
            raise CannotStart(
                f"backend {plan.backend!r} cannot start: its process {death} while it was set up", self._output.tail()
            ) from None

    def _list(self, suite: str, options: Options) -> wire.CaseList:
        self._end_warm_up()
        self._request(wire.ListCases(suite, options))
        try:
            return self._answer(wire.CaseList, START_LIMIT)
        except _ZygoteDied as death:
            raise CannotStart(
                f"suite {suite!r} cannot be used: the process {death} while it was imported", self._output.tail()
            ) from None

    def _end_warm_up(self) -> None:
        if not self._warming:
            return
        self._warming = False
        try:
            warm = self._answer(wire.WarmedUp, WARM_UP_LIMIT)
            problem = warm.error
            if warm.threads <= max(1, self.hello.threads if self.hello else 1):
                self._output.note(f"warm-up took {warm.seconds:.2f} s {problem}".rstrip())
                return
            problem = f"it started {warm.threads - 1} threads"
        except _ZygoteDied as death:
            problem = f"the process {death}"
        self._output.note(f"no warm-up: {problem}")
        self._warm_up = False
        self._restart()

    def _restart(self) -> None:
        self._stop_zygote()
        self.restarts += 1
        self._warming = False
        self.start()
        for suite in self._suites:
            self._list(suite, self.options)
        self.warm_up()

    def _request(self, message: wire.Message) -> None:
        assert self._control is not None
        with contextlib.suppress(OSError):  # a dead zygote is found out by the missing answer
            self._control.send(message)

    def _answer(self, kind: type, limit: float) -> Any:
        """The zygote's next message. Raises `_ZygoteDied` or, when it refuses, `CannotStart`."""
        control = self._control
        assert control is not None
        end = time.monotonic() + limit
        while True:
            for message in control.poll():
                if isinstance(message, wire.Failed):
                    self._drop_runner()
                    self._stop_zygote()
                    raise CannotStart(message.reason, message.detail)
                if isinstance(message, kind):
                    return message
            if control.closed:
                raise _ZygoteDied(self._stop_zygote())
            if time.monotonic() > end:
                self._stop_zygote()
                raise _ZygoteDied(f"did not answer within {limit:g} s")
            self._pump(POLL)

    def _stop_zygote(self) -> str:
        """Stop the zygote, which kills what it forked; returns how it ended."""
        zygote, control = self._zygote, self._control
        self._zygote = self._control = None
        if zygote is None or control is None:
            return "ended"
        self._selector.unregister(control.sock)
        control.close()
        try:
            zygote.wait(5)
        except subprocess.TimeoutExpired:
            zygote.kill()
            zygote.wait()
        self._output.drain()
        self._selector.unregister(self._output.fd)
        self._output.detach()
        return deaths.ended(zygote.returncode)

    # ------------------------------------------------------------------------------------------------- the runners

    def run_case(self, suite: str, case: Case, writer: Writer, *, skip: frozenset[int] = frozenset()) -> list[Record]:
        """Run the samples of a case but for the indices in `skip`; returns their records, which `writer` has by then.

        Raises `CannotStart` when the zygote died and cannot be started again.
        """
        records: list[Record] = []
        self._seconds = self.limits.seconds or self.cases(suite).seconds or DEFAULT_TIME_LIMIT
        asked, default = self.limits.memory, self.cases(suite).memory or DEFAULT_MEMORY_LIMIT
        self._memory = default if asked is None else asked
        progress = Progress(suite, case, skip)
        failed = 0
        while not progress.done:
            try:
                runner = self._ready_runner()
                failed = 0
            except _ZygoteDied as death:
                failed += 1
                if failed == START_ATTEMPTS:
                    raise CannotStart(f"no process can be forked: the zygote {death}", self._output.tail()) from None
                self._output.note(f"the zygote {death}; a new one is started")
                self._restart()
                continue
            runner.ready = False
            request = wire.RunCase(suite, case, progress.index, tuple(skip), self.options, self._seconds, self._memory)
            with contextlib.suppress(OSError):
                runner.channel.send(request)
            killed, detail = self._follow(runner, progress, writer, records)
            if runner.spent:
                self._drop_runner()
                continue
            if progress.done:
                runner.cases += 1
                break
            self._bury(runner, progress, killed, detail, writer, records)
        writer.case_done(str(case), progress.samples)
        return records

    def _ready_runner(self) -> Runner:
        self._end_warm_up()
        runner = self._runner
        if runner is not None:
            grown = runner.rss() - runner.base_rss
            if runner.cases < RECYCLE_CASES and grown < RECYCLE_RSS and self._await_ready(runner, self._seconds):
                return runner
            self._drop_runner()
        if self._zygote is None:
            self._restart()
            self._end_warm_up()
        ours, theirs = socket.socketpair()
        with theirs:
            control = self._control
            assert control is not None
            try:
                control.send(wire.Fork())
                socket.send_fds(control.sock, [b"f"], [theirs.fileno()])
            except OSError:
                pass
            forked = self._answer(wire.Forked, START_LIMIT)
        self.forks += 1
        self._runner = Runner(forked.pid, wire.Channel(ours, sender="child"), forked.rss)
        self._selector.register(ours, selectors.EVENT_READ, self._runner.channel)
        self._selector.register(self._runner.pidfd, selectors.EVENT_READ, None)
        if not self._await_ready(self._runner, START_LIMIT):
            self._drop_runner()
            if self._control is None or self._control.closed:
                raise _ZygoteDied("died")
            raise CannotStart(
                f"backend {self.plan.backend!r} cannot start: a process ended or hung while it was set up",
                self._output.tail(),
            )
        return self._runner

    def _await_ready(self, runner: Runner, limit: float) -> bool:
        """Wait until the runner can take a case; False when it died or hangs. Raises `CannotStart`."""
        end = time.monotonic() + limit
        while not runner.ready:
            stop = runner.has_ended() or time.monotonic() > end
            for message in runner.channel.poll():
                if isinstance(message, wire.Failed):
                    if not runner.cases:
                        self._drop_runner()
                        raise CannotStart(message.reason, message.detail)
                    self._output.note(f"a runner failed after its case: {message.reason}")
                    return False
                runner.ready = isinstance(message, wire.Ready)
            self._output.drain()
            if stop and not runner.ready:
                return False
            self._pump(0 if runner.ready else POLL)
        return not runner.has_ended()

    def _follow(
        self, runner: Runner, progress: Progress, writer: Writer, records: list[Record]
    ) -> tuple[Killed | None, str]:
        """Follow a runner to the end of the case or its own; returns whether and why we killed it."""
        deadline = time.monotonic() + self._seconds
        look = time.monotonic() + POLL
        while True:
            ended = runner.has_ended()  # asked before reading, so that all it wrote is read
            try:
                messages = runner.channel.poll()
            except wire.BrokenStream as error:
                self._output.drain()
                kill_group(runner.pid)
                return Killed.STREAM, str(error)
            self._output.drain()
            for message in messages:
                match message:
                    case wire.Ready() if progress.done:
                        runner.ready = True
                    case wire.Starting():
                        progress.starting(message)
                        self._output.next_sample(progress.sample)
                        writer.start(progress.sample)
                        with contextlib.suppress(OSError):
                            runner.channel.send(wire.Go())
                    case wire.Recorded():
                        record = msgspec.msgpack.decode(message.record, type=Record)
                        self._quote_output(record)
                        self._finish(record, progress, writer, records)
                        runner.samples += 1
                        if _may_leave_damage(record):
                            runner.spent = True
                            return None, ""
                        deadline = time.monotonic() + self._seconds
                    case wire.CaseDone():
                        # One that ended early could not rebuild what it had built before.
                        progress.finish(max(message.samples, len(records) + len(progress.skip)))
                    case wire.Failed():
                        return Killed.ENGINE, message.reason
            if progress.done or ended:
                return None, ""
            if messages:
                continue
            now = time.monotonic()
            if now > min(look, deadline):
                look = now + POLL
                # The kernel's limit counts private memory; this one what is really there, shared memory too.
                if self._memory and runner.rss() - runner.base_rss > self._memory:
                    kill_group(runner.pid)
                    return Killed.MEMORY, ""
            if now > deadline:
                self._await_stacks(runner)
                kill_group(runner.pid)
                return Killed.TIMEOUT, ""
            self._pump(min(POLL, deadline - now))

    def _quote_output(self, record: Record) -> None:
        """Add a compiler's own words to an error that only says that they were printed."""
        if record.outcome in (Outcome.ERROR, Outcome.UNSUPPORTED) and record.stage is not None:
            message = fingerprints.with_diagnostic(record.message, self._output.tail())
            if message != record.message:
                error, _, text = message.partition(": ")
                record.message = message
                record.fingerprint = fingerprints.of_error(error, text, op=record.subject, stage=record.stage)

    def _finish(self, record: Record, progress: Progress, writer: Writer, records: list[Record]) -> None:
        if not progress.started:
            writer.start(record.sample)  # it failed while it was built
        record.worker = self.worker
        record.started = progress.started_at
        if progress.note:
            record.reason = f"{record.reason}; {progress.note}" if record.reason else progress.note
        writer.record(record)
        records.append(record)
        progress.next()

    def _bury(
        self,
        runner: Runner,
        progress: Progress,
        killed: Killed | None,
        detail: str,
        writer: Writer,
        records: list[Record],
    ) -> None:
        """Reap a dead runner and write the record of the sample that it died of."""
        stage = self._stage_in_flight()
        self._forget(runner)
        kill_group(runner.pid)  # what it started; the group exists until the runner is reaped
        try:
            self._request(wire.Reap(runner.pid))
            reaped = self._answer(wire.Reaped, START_LIMIT)
            status, max_rss = reaped.status, reaped.max_rss
            if reaped.strays:
                self._output.note(f"{progress.sample} left {reaped.strays} processes behind; they were killed")
        except _ZygoteDied as ended:
            status, max_rss = None, 0
            detail = detail or f"the zygote {ended}"
        building = not progress.started
        death = Death(
            stage=Stage.BUILD if building else stage,
            building=building,
            status=status,
            killed=killed,
            output=self._output.tail(),
            time_limit=self._seconds,
            memory_limit=self._memory,
            base_rss=runner.base_rss,
            max_rss=max_rss,
            detail=detail,
        )
        fields = deaths.fields(death, op=progress.case.subject)
        if building and killed is None and runner.samples and fields["outcome"] is Outcome.CRASH:
            # A sample before it may have damaged the heap: only a death in a fresh process is this one's.
            progress.note = f"second try: while this sample was built after others, {fields['message']}"
            self._output.next_sample()
            return
        if building:
            fields["reason"] = "; ".join(filter(None, [detail, "the sample could not be built, and so none after it"]))
        hello = self.hello
        record = Record.of(
            progress.case,
            progress.index,
            suite=self._suites[progress.suite].name,
            backend=hello.backend if hello else self.plan.backend,
            seed=self.options.seed,
            digest=progress.digest,
            numerics=progress.numerics,
            **fields,
        )
        self._finish(record, progress, writer, records)
        self._output.next_sample()
        if building and fields["outcome"] is not Outcome.INFRA:
            progress.finish(len(records) + len(progress.skip))

    def _stage_in_flight(self) -> Stage:
        number = self._stage[0]
        return STAGES[number] if number < len(STAGES) else Stage.RUN  # a sample wrote over it: so it was running

    def _await_stacks(self, runner: Runner) -> None:
        end = time.monotonic() + STACK_LIMIT
        while time.monotonic() < end and not runner.has_ended():
            self._output.drain()
            if "Timeout (" in self._output.tail():
                time.sleep(0.05)  # the rest of it
                self._output.drain()
                return
            self._pump(0.05)

    def _forget(self, runner: Runner) -> None:
        self._selector.unregister(runner.channel.sock)
        self._selector.unregister(runner.pidfd)
        runner.close()
        self._runner = None

    def _drop_runner(self) -> None:
        """Kill the runner, in which nothing is in flight."""
        runner = self._runner
        if runner is None:
            return
        kill_group(runner.pid)
        self._forget(runner)
        if self._control is not None:
            self._request(wire.Reap(runner.pid))
            with contextlib.suppress(_ZygoteDied):
                self._answer(wire.Reaped, START_LIMIT)

    def _pump(self, timeout: float) -> bool:
        """Wait for anything to happen, at most `timeout` seconds; keeps the pipe of the children's output empty."""
        events = self._selector.select(timeout)
        if any(key.data is self._output for key, _ in events):
            self._output.drain()
        return bool(events)
