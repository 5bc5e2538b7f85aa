"""Helpers for tests that need a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def child_environment(**extra: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path, **extra}


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Runs a script in a fresh interpreter and returns what it printed; fails the test if it fails."""

    def run(script: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=child_environment(**environment),
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
