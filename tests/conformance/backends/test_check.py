"""The protocol check finds what a backend promises and does not keep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

from conformance.backends.check import Row, check
from conformance.backends.eager import EagerBackend
from conformance.backends.registry import find


def failed(backend: Any, seconds: float = 60.0) -> dict[str, str]:
    return {row.check: row.detail for row in check(backend, seconds=seconds) if row.ok is False}


@pytest.mark.parametrize("name", ["eager", "dynamo"])
def test_the_controls_fulfil_the_protocol(name: str) -> None:
    # In a process of its own, as on the command line: autograd does not work in a fork of one that has used it with
    # a torch that is built for accelerators.
    code = (
        "import sys, msgspec\n"
        "from conformance.backends import check, registry\n"
        "sys.stdout.buffer.write(msgspec.json.encode(check.check(registry.find(sys.argv[1]))))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, check=True, timeout=300)
    rows = msgspec.json.decode(done.stdout, type=list[Row])
    assert not [row for row in rows if row.ok is False]
    assert {"setup()", "dynamic shapes", "backward", "repro template runs"} <= {row.check for row in rows if row.ok}


def test_an_absent_backend_is_not_run() -> None:
    backend = find("torch_sendnn")
    if not backend.availability()[0]:
        assert [row.check for row in check(backend) if row.ok is False] == ["available here"]


class Variant(EagerBackend):
    """A right backend, whose members the tests replace."""


def changed(**members: Any) -> Variant:
    return type("Changed", (Variant,), members)()


def wrong_values(self: Any, fn: Any, *, dynamic: Any, fullgraph: bool = False) -> Any:
    return lambda *args: fn(*args) + 1


def dies(self: Any, fn: Any, *, dynamic: Any, fullgraph: bool = False) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(self: Any) -> None:
    time.sleep(60)


def detached(self: Any, fn: Any, *, dynamic: Any, fullgraph: bool = False) -> Any:
    return lambda *args: fn(*args).detach()


def raises(self: Any) -> Any:
    raise OSError("no driver")


class Counting:
    """An observer that never forgets."""

    count = 0

    def __enter__(self) -> dict[str, Any]:
        self.seen: dict[str, Any] = {}
        return self.seen

    def __exit__(self, *_: object) -> None:
        Counting.count += 1
        self.seen["kernels"] = Counting.count


class Misspelt(Counting):
    def __exit__(self, *_: object) -> None:
        self.seen["kernel"] = 0


@pytest.mark.parametrize(
    ("members", "row", "says"),
    [
        ({"name": None}, "required members", "attribute 'name' must be str"),
        ({"setup": None}, "required members", "has no method setup()"),
        ({"protocol_version": 2}, "protocol version", "2, this suite speaks 1"),
        ({"observe": 3}, "optional members", "not callable: observe"),
        ({"availability": lambda self: True}, "availability()", "must return (bool, str), not True"),
        ({"availability": raises}, "availability()", "must say why, not raise OSError: no driver"),
        ({"availability": lambda self: (False, "")}, "availability()", "says no without a reason"),
        ({"capabilities": lambda self: {"devise": "cpu"}}, "capabilities()", "fields: device"),
        ({"capabilities": lambda self: {"device": "xpu"}}, "capabilities()", "the backend's is 'cpu'"),
        (
            {"capabilities": lambda self: {"device": "cpu", "number_formats": {"float16": "half"}}},
            "capabilities()",
            "number_formats[float16]=half",
        ),
        ({"compile_source": "torch.compile(model)"}, "repro template", "does not mention fn"),
        ({"compile_source": "torch.compile(fn"}, "repro template", "must give Python"),
        ({"compile_source": "fn(options={})"}, "repro template", "must give Python"),
        ({"environment": lambda self: {"A": 1}}, "environment()", "must be a dict of strings"),
        ({"setup": raises}, "setup()", "OSError: no driver"),
        ({"compile": wrong_values}, "compiles and runs", "wrong"),
        ({"compile": detached}, "backward", "RuntimeError"),
        ({"compile": dies}, "runs to the end", "crash (SIGSEGV) in the check after 'setup()'"),
        ({"imports": "import no_such_module_here"}, "repro template runs", "ModuleNotFoundError"),
        (
            {"capabilities": lambda self: {"device": "cpu", "dtypes": ["float32", "float33"]}},
            "declared dtypes",
            "float33: no torch dtype of that name",
        ),
        ({"unsupported": lambda self, error: True}, "unsupported()", "calls a KeyError a refusal"),
        ({"unsupported": lambda self, error: "yes"}, "unsupported()", "must return a bool"),
        ({"observe": lambda self: Counting()}, "observe()", "though nothing was called"),
        ({"observe": lambda self: Misspelt()}, "observe() fields", "unknown: kernel (fields: kernels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_missing_or_untrue(members: dict[str, Any], row: str, says: str) -> None:
    found = failed(changed(**members))
    assert row in found, found
    assert says in found[row]


def test_what_is_not_claimed_need_not_work() -> None:
    backend = changed(compile=detached, capabilities=lambda self: {"device": "cpu"})
    assert not failed(backend)
    (row,) = [row for row in check(backend) if row.check == "backward"]
    assert row.ok is None
    assert "does not work, and is not declared" in row.detail


def test_a_hang_is_cut_short() -> None:
    started = time.monotonic()
    assert "timeout (no answer in 1 s)" in failed(changed(setup=hangs), seconds=1.0)["runs to the end"]
    assert time.monotonic() - started < 20


def test_rows_are_plain_data() -> None:
    assert Row("a", None) == Row("a", None, "")
