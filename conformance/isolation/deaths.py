"""What the death of a runner says about the sample in flight. Pure: from facts to a record's fields."""

from __future__ import annotations

import os
import re
import signal
from enum import StrEnum
from typing import Any

import msgspec

from conformance import fingerprints
from conformance.isolation import memory
from conformance.outcomes import Outcome, Owner, Result, Stage, is_undecided

TAIL = 16 * 1024  # characters of a dead process's output that go into its record
NEAR = 0.8  # a SIGKILL that is not ours counts as out of memory from this share of the limit on


OUR_WORK = {Stage.BUILD: "making of the inputs", Stage.REFERENCE: "reference", Stage.COMPARE: "judgement"}


class Killed(StrEnum):
    """Why the supervisor itself killed a runner."""

    TIMEOUT = "timeout"
    MEMORY = "memory"
    ENGINE = "engine"  # not the sample: our own code in the runner raised
    STREAM = "stream"  # it wrote something else than our messages to its socket


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about a runner that ended with a sample in flight."""

    stage: Stage
    building: bool  # the sample had not started: it, or what the samples before it left behind, killed the process
    status: int | None  # as from waitpid; None: the zygote died as well and nobody could ask
    killed: Killed | None = None
    output: str = ""  # what the process wrote while the sample was in flight, its end
    time_limit: float = 0.0  # seconds
    memory_limit: int = 0  # bytes above `base_rss`; 0: none
    base_rss: int = 0  # bytes, of the zygote at the fork
    max_rss: int = 0  # bytes
    detail: str = ""


def fields(death: Death, *, op: str) -> dict[str, Any]:
    """The fields of a `Record` that describe the death of a runner in a sample of `op`."""
    outcome, cause = _judge(death)
    exit_code, signal_name = _status(death.status) if death.killed is None else (None, "")
    if death.killed is not None:
        signal_name = "SIGKILL"
    place = crash_place(death.output)
    if is_undecided(Result(outcome, stage=death.stage)):
        cause += f" in our own {OUR_WORK[death.stage]}, which says nothing about the backend"
    message = cause + (f", in {place}" if place else "")
    fingerprint = fingerprints.of_death(
        outcome, op=op, stage=death.stage, signal=signal_name, exit_code=exit_code, place=place
    )
    return {
        "outcome": outcome,
        "stage": death.stage,
        "owner": None if outcome is Outcome.INFRA else Owner.UNDETERMINED,
        "fingerprint": fingerprint if outcome is not Outcome.INFRA else "",
        "message": message,
        "traceback": death.output[-TAIL:],
        "exit_code": exit_code,
        "signal": signal_name,
        "peak_memory": death.max_rss or None,
        "reason": death.detail,
    }


def _judge(death: Death) -> tuple[Outcome, str]:
    if death.killed is Killed.TIMEOUT:
        hung = "" if "Timeout (" in death.output else "; it wrote no stack (stopped, or its stderr is closed)"
        return Outcome.TIMEOUT, f"no end after {death.time_limit:g} s{hung}"
    if death.killed is Killed.MEMORY:
        return Outcome.OOM, f"used more than {_mib(death.memory_limit)} of memory"
    if death.killed is Killed.STREAM:
        return Outcome.CRASH, f"wrote into the socket of its supervisor ({death.detail})"
    if death.killed is Killed.ENGINE:
        return Outcome.INFRA, "the engine itself failed"
    if death.status is None:
        return Outcome.INFRA, "the zygote died, and the process with it"
    exit_code, name = _status(death.status)
    if name == "SIGABRT" and memory.is_exhausted(death.output):
        return Outcome.OOM, "aborted because it got no more memory"
    used = death.max_rss - death.base_rss
    if name == "SIGKILL" and death.memory_limit and used >= NEAR * death.memory_limit:
        return Outcome.OOM, f"was killed when it had taken {_mib(used)}"
    if name:
        return Outcome.CRASH, f"the process died of {name}"
    return Outcome.CRASH, f"the process exited with status {exit_code}"


def _status(status: int | None) -> tuple[int | None, str]:
    """`(exit code, "")` or `(None, signal name)` of a wait status."""
    if status is None:
        return None, ""
    code = os.waitstatus_to_exitcode(status)
    return (code, "") if code >= 0 else (None, _signal_name(-code))


def ended(returncode: int) -> str:
    """How a process ended, from its return code as `subprocess` gives it."""
    return f"died of {_signal_name(-returncode)}" if returncode < 0 else f"exited with status {returncode}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)$', re.MULTILINE)
_OURS = re.compile(r"[/\\]conformance[/\\](child|execute|calls|isolation)\.py$")


def crash_place(output: str) -> str:
    """`function (file:line)` of the innermost frame in the last traceback that faulthandler wrote, "" if there is none.

    Frames of the engine itself say nothing about the sample and are left out.
    """
    start = max(output.rfind("most recent call first"), 0)
    for frame in _FRAME.finditer(output, start):
        if not _OURS.search(frame["file"]):
            return f"{frame['function']} ({'/'.join(frame['file'].split('/')[-2:])}:{frame['line']})"
    return ""


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
