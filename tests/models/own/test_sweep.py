"""Whole runs, as a team would start them: from their own folder, in which a package is called `models`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import store
from conformance.outcomes import Outcome

NET = """
import torch
from torch import nn


class Branchy(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x):
        from models.late import shift

        if x.sum() > 0:
            return shift(x * self.weight)
        return x


def make():
    return Branchy(), {"x": torch.randn(2, 6, 8)}


def broken():
    raise RuntimeError("no weights here")
"""

FILE = """
[[model]]
name = "branchy"
factory = "models.net:make"
dynamic = { x = { batch = 0, length = 1 } }
tolerance = { atol = 1e-3 }
priority = 7

[[model]]
name = "broken"
factory = "models/net.py:broken"
"""


@pytest.fixture(scope="module")
def team(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("team")
    (place / "models").mkdir()
    (place / "models" / "__init__.py").write_text("")
    (place / "models" / "net.py").write_text(NET)
    (place / "models" / "late.py").write_text("def shift(x):\n    return x + 0.25\n")
    (place / "models.toml").write_text(FILE)
    (place / "wrong.toml").write_text(FILE.replace("priority", "prioriti"))
    return place


def conformance(team: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CONFORMANCE_"))}
    # The folder is on PYTHONPATH as well: even so, our own package is ours.
    command = [sys.executable, "-P", "-m", "conformance", *arguments]
    environment = kept | {"PYTHONPATH": str(team)}
    return subprocess.run(command, cwd=team, env=environment, capture_output=True, text=True, timeout=300, check=False)


SWEEP = (
    *("sweep", "models", "--backend", "dynamo", "-n", "0"),
    *("--shape-mode", "static", "--direction", "fwd", "--lane", "samples"),
)


def test_a_mistake_in_the_file_is_one_line_and_nothing_is_run(team):
    done = conformance(team, *SWEEP, "--models", "wrong.toml")
    assert done.returncode == 2
    assert "ERROR: wrong.toml:7: unknown key `prioriti`; did you mean `priority`?" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (team / "runs").exists()


def test_a_sweep_names_the_line_of_the_users_file_and_can_be_gone_on_with(team):
    done = conformance(team, *SWEEP, "--models", "models.toml", "--run-dir", "run")
    assert done.returncode == 1, done.stdout
    records = {record.subject: record for record in store.read(team / "run")}
    branchy, broken = records["own/branchy"], records["own/broken"]
    line = NET.splitlines().index("        if x.sum() > 0:") + 1
    assert branchy.outcome is Outcome.BUDGET
    assert [item.place for item in branchy.breaks] == [f"models/net.py:{line}"]
    assert branchy.reason == "tolerance declared: atol 0.001"
    assert (broken.outcome, broken.owner) == (Outcome.ERROR, "user code")
    assert "models.toml:11: `factory`: raised RuntimeError: no weights here (" in broken.message
    facts = store.read_manifest(team / "run").suite_facts["models"]
    assert facts["own"]["own/branchy"]["priority"] == 7
    assert f"--models {team}/models.toml" in done.stdout

    again = conformance(team, "sweep", "models", "--resume", "run", "-n", "0")
    assert "2 collected = 2 run + 0 skipped + 0 lost" in again.stdout

    told = conformance(team, "explain", branchy.sample, "--backend", "dynamo", "--models", "models.toml")
    assert "tolerance declared: atol 0.001" in told.stdout
    assert f"models/net.py:{line} in forward" in told.stdout
