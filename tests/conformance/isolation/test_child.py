"""The child with torch in it: the real engine, through pytest, whose own process never imports torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import store
from conformance.isolation import child
from conformance.outcomes import Outcome

SUITE = Path(__file__).parent.parent / "fakes" / "torch_suite.py"

CONFTEST = """
import sys

def pytest_sessionfinish():
    assert "torch" not in sys.modules
    print("no torch here")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    here = tmp_path_factory.mktemp("torch")
    (here / "conftest.py").write_text(CONFTEST)
    (here / "test_torch.py").write_text(
        f"from conformance.plugin import SuiteItems\n\ncalls = SuiteItems({f'{SUITE}:TorchSuite'!r})\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "conformance.plugin", "-p", "no:cacheprovider", "-s"]
    done = subprocess.run(
        [*command, "--backend", "eager", "--memory-limit", "512M", "--run-dir", "run"],
        cwd=here,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done, here / "run"


def test_the_process_of_pytest_never_imports_torch(run):
    done, _ = run
    assert "no torch here" in done.stdout, done.stdout + done.stderr


def test_calls_of_torch_are_isolated(run):
    done, place = run
    records = sorted(store.read(place), key=lambda record: record.index)
    assert [record.outcome for record in records] == [
        Outcome.PASS,
        Outcome.CRASH,
        Outcome.OOM,
        Outcome.OOM,
        Outcome.PASS,
    ], done.stdout
    assert records[1].signal == "SIGSEGV"
    assert "_segfault" in records[1].traceback
    assert [record.digest for record in records] == ["_add", "_segfault", "_a_tebibyte", "_a_gibibyte", "_add"]


def test_the_manifest_says_with_what(run):
    _, place = run
    manifest = store.read_manifest(place)
    assert manifest.backend == "eager"
    assert {"torch", "python", "numpy", "spyre-conformance"} <= set(manifest.versions)
    assert manifest.capabilities["device"] == "cpu"
    assert manifest.environment["OMP_NUM_THREADS"]


@pytest.mark.parametrize(
    ("device", "said", "planned", "safe"),
    [
        ("cpu", None, None, True),
        ("cuda", None, None, False),
        ("cuda:1", None, None, False),
        ("spyre", True, None, True),
        ("spyre", True, False, False),
        ("cpu", False, None, False),
    ],
)
def test_which_backends_are_set_up_before_the_fork(device, said, planned, safe):
    backend = type("Backend", (), {"device": device} | ({} if said is None else {"fork_safe": said}))()
    assert child._fork_safe(child.Plan(backend="x", fork_safe=planned), backend) is safe


def test_what_the_user_has_set_wins():
    made = child.environment({"OMP_NUM_THREADS": "4", "OTHER": "x"})
    assert (made["OMP_NUM_THREADS"], made["OTHER"], made["PYTHONHASHSEED"]) == ("4", "x", "0")
