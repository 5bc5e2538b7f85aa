"""`conformance sweep` finds the suite, hands options on, and knows where the run will be."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import store
from conformance.commands import sweep
from conformance.records import Manifest
from conformance.suites import SuiteNotFound


def test_the_directory_of_a_suite() -> None:
    assert sweep.directory("ops").name == "op_coverage"
    with pytest.raises(SuiteNotFound, match="no suite named 'nope'"):
        sweep.directory("nope")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], None),
        (["--run-dir", "x"], "x"),
        (["--run-dir=x"], "x"),
        (["--run-dir", "x", "--run-dir=y"], "y"),
        (["--run-dir"], None),
        (["--run-directory", "x"], None),
    ],
)
def test_values_of_further_options(arguments: list[str], expected: str | None) -> None:
    assert sweep.value("--run-dir", arguments) == expected


def test_a_new_run_is_named_by_time_backend_and_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.RUNS_VARIABLE, str(tmp_path))
    options, place = sweep.run_options("my/file.py:Thing", "pr", ["--op", "add"])
    assert options[:4] == ["--backend", "my/file.py:Thing", "--tier", "pr"]
    assert options[4:] == ["--run-dir", place]
    assert Path(place).parent == tmp_path
    assert place.endswith("-Thing-pr")
    assert not Path(place).exists()


def test_the_place_that_was_asked_for() -> None:
    assert sweep.run_options("spyre", "pr", ["--run-dir", "d"]) == (["--backend", "spyre", "--tier", "pr"], "d")


def test_a_resumed_run_keeps_its_backend_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(store.RUNS_VARIABLE, str(tmp_path))
    run = store.new_run("b", "pr")
    store.write_manifest(run, Manifest(run=run.name, started=0.0))
    assert sweep.run_options("spyre", "pr", ["--resume", "latest"]) == ([], str(run))
