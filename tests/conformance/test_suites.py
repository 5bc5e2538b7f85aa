from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import suites

FAKES = Path(__file__).parent / "fakes" / "suites.py"


def test_a_suite_in_a_file():
    assert suites.find(f"{FAKES}:Torture").kind == "fake"


def test_a_suite_in_a_module():
    assert suites.find("op_coverage.suite:OpSuite").kind == "op"


def test_an_installed_suite():
    assert suites.find("ops").kind == "op"
    assert "ops" in suites.names()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nosuch", "no suite named 'nosuch'; installed: "),
        ("/nowhere/suite.py:Suite", "no file /nowhere/suite.py"),
        (f"{FAKES}:Nothing", "has no 'Nothing'"),
    ],
)
def test_a_suite_that_is_not_there(spec, words):
    with pytest.raises(suites.SuiteNotFound, match=words):
        suites.find(spec)


def test_a_package_of_the_users_does_not_hide_ours(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("")
    code = "from conformance import suites; print(suites.find('models').kind)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "model\n", done.stderr
