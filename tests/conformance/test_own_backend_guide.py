"""The guide "test your own backend": its example is short and works, its commands run, its tables are complete."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.backends.protocol import Capabilities, Observation, ObservingBackend
from conformance.backends.registry import ATTRIBUTES, METHODS

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "test-your-own-backend.md"
EXAMPLE = ROOT / "docs" / "examples" / "own_backend.py"


def commands() -> list[list[str]]:
    return [shlex.split(line) for line in re.findall(r"^\$ (conformance .+)$", GUIDE.read_text(), re.MULTILINE)]


def run(*command: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    program = "from conformance.cli import main; main()"
    command = tuple(str(ROOT / part) if part.startswith("docs/") else part for part in command)
    return subprocess.run(
        [sys.executable, "-c", program, *command],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        check=False,
    )


def test_the_example_is_short_and_imports_nothing_of_the_suite() -> None:
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) <= 50
    assert "conformance" not in text


def test_the_example_fulfils_the_protocol(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (command,) = [c for c in commands() if c[1:3] == ["backends", "check"]]
    done = run(*command[1:], tmp_path=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout


def test_the_example_is_swept(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    short, whole = [c for c in commands() if c[1:3] == ["sweep", "ops"]]
    assert short[: len(whole)] == whole
    done = run(*short[1:], "-n", "0", "--run-dir", str(tmp_path / "run"), tmp_path=tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(
    "names",
    [
        [*ATTRIBUTES, *METHODS],
        [name for name in (*vars(ObservingBackend), *ObservingBackend.__annotations__) if not name.startswith("_")],
        Capabilities.__struct_fields__,
        Observation.__struct_fields__,
    ],
    ids=["required", "optional", "capabilities", "observation"],
)
def test_the_guide_names_every_member_and_field(names: list[str]) -> None:
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", GUIDE.read_text()))))
    hidden = {"control"}  # for the suite's own controls
    assert not set(names) - words - hidden


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", GUIDE.read_text()):
        assert (GUIDE.parent / link).exists(), link
