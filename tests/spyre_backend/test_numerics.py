"""The switch between the numbers of PyTorch and those of the device."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spyre_backend import numerics
from spyre_backend.numerics import Numerics

SCRIPT = "import spyre_backend.numerics as n; print(n.MODE.value, n.is_dl16())"


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(("value", "found"), [("", Numerics.IEEE), ("ieee", Numerics.IEEE), (" dl16", Numerics.DL16)])
def test_what_a_value_asks_for(value: str, found: Numerics) -> None:
    assert numerics.asked_for(value) is found


def test_a_bad_value_is_named_with_what_would_be_right() -> None:
    with pytest.raises(ValueError, match=r"^SPYRE_NUMERICS: no numerics 'fp16'; there is ieee or dl16$"):
        numerics.asked_for("fp16")
    done = run(SPYRE_NUMERICS="fp16")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == "ValueError: SPYRE_NUMERICS: no numerics 'fp16'; there is ieee or dl16"


def test_the_environment_chooses_for_a_process() -> None:
    assert run(SPYRE_NUMERICS="dl16").stdout.split() == ["dl16", "True"]
    assert run(SPYRE_NUMERICS="").stdout.split() == ["ieee", "False"]


def test_narrowing_is_said_once(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    monkeypatch.setattr(numerics, "_said", [])
    numerics.warn_narrowed("here")
    numerics.warn_narrowed("there")
    (said,) = recwarn
    assert said.category is numerics.NarrowedIntegerWarning
    assert str(said.message).startswith("here: an int64 is beyond 32 bits")
