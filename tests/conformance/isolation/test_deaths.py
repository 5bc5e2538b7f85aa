"""What the death of a process says about a sample: a table of facts and findings."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.isolation import deaths
from conformance.isolation.deaths import Death, Killed
from conformance.outcomes import Outcome, Owner, Stage

GIB = 1 << 30
TRACE = """noise
Fatal Python error: Segmentation fault

Current thread 0x00007f87ad407b80 (most recent call first):
  File "/x/site-packages/conformance/execute.py", line 7 in run_sample
  File "/x/site-packages/torch/_ops.py", line 519 in __call__
  File "/x/suite.py", line 3 in wrapper
"""


def death(**facts):
    return Death(**{"stage": Stage.RUN, "building": False, "status": 0} | facts)


def died_of(number: int, **facts) -> Death:
    return death(status=number, **facts)


def exited_with(code: int, **facts) -> Death:
    return death(status=code << 8, **facts)


TABLE = {
    "segfault": (died_of(signal.SIGSEGV), Outcome.CRASH, "the process died of SIGSEGV", "SIGSEGV", None),
    "core dumped": (died_of(signal.SIGSEGV | 0x80), Outcome.CRASH, "the process died of SIGSEGV", "SIGSEGV", None),
    "real-time signal": (died_of(37), Outcome.CRASH, "the process died of signal 37", "signal 37", None),
    "exit": (exited_with(3), Outcome.CRASH, "the process exited with status 3", "", 3),
    "exit 0": (exited_with(0), Outcome.CRASH, "the process exited with status 0", "", 0),
    "abort": (died_of(signal.SIGABRT, output="assertion failed"), Outcome.CRASH, "SIGABRT", "SIGABRT", None),
    "bad_alloc": (
        died_of(signal.SIGABRT, output="terminate called after throwing an instance of 'std::bad_alloc'"),
        Outcome.OOM,
        "aborted because it got no more memory",
        "SIGABRT",
        None,
    ),
    "killed while small": (
        died_of(signal.SIGKILL, memory_limit=GIB, base_rss=GIB, max_rss=GIB + 10),
        Outcome.CRASH,
        "the process died of SIGKILL",
        "SIGKILL",
        None,
    ),
    "killed near the limit": (
        died_of(signal.SIGKILL, memory_limit=GIB, base_rss=GIB, max_rss=2 * GIB - 1000),
        Outcome.OOM,
        "was killed when it had taken 1024 MiB",
        "SIGKILL",
        None,
    ),
    "killed without a limit": (
        died_of(signal.SIGKILL, max_rss=9 * GIB),
        Outcome.CRASH,
        "the process died of SIGKILL",
        "SIGKILL",
        None,
    ),
    "timeout": (
        died_of(signal.SIGKILL, killed=Killed.TIMEOUT, time_limit=2.5, output="Timeout (0:00:02.5)!\n"),
        Outcome.TIMEOUT,
        "no end after 2.5 s",
        "SIGKILL",
        None,
    ),
    "timeout without stacks": (
        died_of(signal.SIGKILL, killed=Killed.TIMEOUT, time_limit=2),
        Outcome.TIMEOUT,
        "no end after 2 s; it wrote no stack (stopped, or its stderr is closed)",
        "SIGKILL",
        None,
    ),
    "memory": (
        died_of(signal.SIGKILL, killed=Killed.MEMORY, memory_limit=GIB),
        Outcome.OOM,
        "used more than 1024 MiB of memory",
        "SIGKILL",
        None,
    ),
    "stream": (
        died_of(signal.SIGKILL, killed=Killed.STREAM, detail="a frame of 7 bytes"),
        Outcome.CRASH,
        "wrote into the socket of its supervisor (a frame of 7 bytes)",
        "SIGKILL",
        None,
    ),
    "engine": (exited_with(0, killed=Killed.ENGINE), Outcome.INFRA, "the engine itself failed", "SIGKILL", None),
    "zygote": (death(status=None), Outcome.INFRA, "the zygote died, and the process with it", "", None),
}


@pytest.mark.parametrize("facts", TABLE, ids=str)
def test_a_death_is_judged(facts):
    given_death, outcome, message, signal_name, exit_code = TABLE[facts]
    found = deaths.fields(given_death, op="sort")
    assert (found["outcome"], found["signal"], found["exit_code"]) == (outcome, signal_name, exit_code)
    assert message in found["message"]
    assert found["stage"] is Stage.RUN
    if outcome is Outcome.INFRA:
        assert (found["owner"], found["fingerprint"]) == (None, "")
    else:
        assert found["owner"] is Owner.UNDETERMINED
        assert found["fingerprint"].startswith(str(outcome))
        assert found["fingerprint"].endswith("@run:sort")


def test_the_place_of_a_crash_is_the_innermost_frame_that_is_not_ours():
    found = deaths.fields(died_of(signal.SIGSEGV, output=TRACE), op="sort")
    assert found["message"] == "the process died of SIGSEGV, in __call__ (torch/_ops.py:519)"
    assert found["fingerprint"] == "crash:SIGSEGV in __call__@run:sort"
    assert found["traceback"] == TRACE


def test_the_last_traceback_counts():
    later = 'Thread 0x1 (most recent call first):\n  File "/y/z.py", line 8 in later\n'
    assert deaths.crash_place(TRACE + later) == "later (y/z.py:8)"


def test_long_output_is_cut_at_its_beginning():
    found = deaths.fields(died_of(signal.SIGSEGV, output="x" * 10**6 + "the end"), op="sort")
    assert len(found["traceback"]) == deaths.TAIL
    assert found["traceback"].endswith("the end")


@given(
    status=st.one_of(st.none(), st.integers(0, 255).map(lambda code: code << 8), st.integers(1, 64)),
    killed=st.one_of(st.none(), st.sampled_from(Killed)),
    output=st.text(),
    sizes=st.tuples(*[st.integers(0, 2**40)] * 3),
)
def test_every_death_has_a_message_and_never_counts_as_run(status, killed, output, sizes):
    limit, base, peak = sizes
    found = deaths.fields(
        death(status=status, killed=killed, output=output, memory_limit=limit, base_rss=base, max_rss=peak), op="x"
    )
    assert found["message"]
    assert found["outcome"] in (Outcome.CRASH, Outcome.TIMEOUT, Outcome.OOM, Outcome.INFRA)
    assert (found["outcome"] is Outcome.INFRA) == (killed is Killed.ENGINE or (killed is None and status is None))


@pytest.mark.parametrize(
    ("stage", "work"),
    [
        (Stage.BUILD, "making of the inputs"),
        (Stage.REFERENCE, "reference"),
        (Stage.COMPARE, "judgement"),
        (Stage.RUN, ""),
    ],
)
def test_whose_time_ran_out_is_said(stage, work):
    facts = died_of(signal.SIGKILL, killed=Killed.TIMEOUT, time_limit=2.5, output="Timeout (0:00:02.5)!", stage=stage)
    message = "no end after 2.5 s" + (f" in our own {work}, which says nothing about the backend" if work else "")
    assert deaths.fields(facts, op="sort")["message"] == message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-signal.SIGSEGV, "died of SIGSEGV"),
        (-63, "died of signal 63"),
        (0, "exited with status 0"),
        (7, "exited with status 7"),
    ],
)
def test_how_a_process_ended(code, words):
    assert deaths.ended(code) == words
