"""The real command line on runs made by hand: what it prints, its exit status, and one line for a user's mistake."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import cli, store
from conformance.cases import Case, Direction, ShapeMode
from conformance.outcomes import Outcome, Owner, Support
from conformance.records import Accounting, Manifest, Record


def conformance(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != store.RUNS_VARIABLE}
    return subprocess.run(
        [sys.executable, "-m", "conformance", *map(str, arguments)],
        cwd=cwd,
        env={**environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def record(backend: str, subject: str, outcome: Outcome = Outcome.PASS, index: int = 0, **fields: object) -> Record:
    case = Case("op", subject, "int64", ShapeMode.STATIC, Direction.FORWARD)
    return Record.of(case, index, suite="ops", backend=backend, outcome=outcome, **fields)


def make_run(
    root: Path, backend: str, now: float, records: list[Record], versions: dict[str, str] | None = None
) -> Path:
    run = store.new_run(backend, "pr", root=root, now=now)
    with store.RunWriter(run, "gw0") as writer:
        for each in records:
            writer.start(each.sample)
            writer.record(each)
    cases = len({each.case for each in records})
    accounting = Accounting(cases_collected=cases, cases_run=cases, samples_run=len(records))
    manifest = Manifest(
        run=run.name,
        started=now,
        complete=True,
        suites=["ops"],
        backend=backend,
        versions=versions if versions is not None else {"torch": "2.13.0+cpu"},
        accounting=accounting,
    )
    store.merge(run, manifest)
    return run


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two runs: of `left` and, later, of `right`."""
    path = tmp_path_factory.mktemp("here")
    common = [record("left", "add", support=Support.NATIVE, compile_s=0.5, cpu_s=0.6, backend_cpu_s=0.5)]
    make_run(
        path / "runs",
        "left",
        1e9,
        [
            *common,
            record("left", "sort", Outcome.UNSUPPORTED, fingerprint="E:no sort@lower:sort", owner=Owner.BACKEND),
            record(
                "left", "topk", Outcome.CRASH, fingerprint="crash:SIGSEGV@run:topk", message="died", traceback="a\nb"
            ),
        ],
    )
    right = [record("right", "add"), record("right", "sort", support=Support.FALLBACK, fallbacks={"aten::sort": 2})]
    make_run(path / "runs", "right", 2e9, right)
    return path


def test_help_takes_less_than_three_tenths_of_a_second(here: Path) -> None:
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = conformance("--help", cwd=here)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0
        assert "sweep" in done.stdout
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.3  # CPU seconds, which other processes on the machine cannot add to


def test_help_imports_neither_torch_nor_what_commands_need(here: Path) -> None:
    body = (
        "import sys, conformance.cli, conformance.plugin, conformance.report.summary, conformance.promotion;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", body], cwd=here, check=False).returncode == 0
    body = "import sys, conformance.cli; sys.exit(bool({'torch', 'duckdb', 'msgspec', 'tomlkit'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", body], cwd=here, check=False).returncode == 0


MISTAKES = [
    (["bogus"], "No such command 'bogus'"),
    (["summary", "--frmat", "x"], "No such option: --frmat"),
    (["summary", "nope"], "no run 'nope'"),
    (["summary", "20"], "run '20' is ambiguous: 2001"),
    (["summary", "latest", "--format", "html"], "--format 'html' is unknown; one of plain, github"),
    (["summary", "latest", "--by", "colour"], "--by 'colour' is unknown; one of kind, dtype"),
    (["compare", "latest"], "Missing argument"),
    (["show", "latest", "op:nope:*"], "has no case or sample 'op:nope:*'"),
    (["query", "latest", "select nonsense from records"], "query: Binder Error"),
    (["promote", "latest", "--issue", "12"], "--issue '12' is not a URL"),
    (["promote", "latest", "--torch", "2.13"], "--torch '2.13' is not a PEP 440 specifier"),
    (["promote", "latest", "--torch", ">3"], "--torch '>3' leaves out torch 2.13.0"),
    (["lint", "none.toml"], "there is no file none.toml"),
    (["sweep", "nope"], "no suite named 'nope'; installed: "),
    (["repro", "op:add"], "'op:add' is not a case id"),
    (
        ["explain", "x:add:float16:static:fwd:samples", "--backend", "eager"],
        "no installed suite has cases of the kind 'x'",
    ),
    (["backends", "check", "nope"], "no backend 'nope'"),
    (["backends", "check", "eager", "--backend-options", "x"], "'x' is neither KEY=VALUE nor a JSON object"),
]


@pytest.mark.parametrize(("arguments", "complaint"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_a_mistake_is_one_line_and_status_2(
    here: Path,
    arguments: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(here)
    monkeypatch.delenv(store.RUNS_VARIABLE, raising=False)
    assert cli._status(arguments) == 2
    said = capsys.readouterr()
    assert said.err.startswith("conformance: ")
    assert said.err.count("\n") == 1
    assert complaint in said.err
    assert said.out == ""


def test_a_mistake_seen_from_outside(here: Path) -> None:
    done = conformance("summary", "nope", cwd=here)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("conformance: no run 'nope': give a directory, or an id or `latest`")


def test_summary(here: Path) -> None:
    done = conformance("summary", "2001", "--by", "lane", cwd=here)
    assert done.returncode == 0, done.stderr
    for text in (
        "left",
        "3 collected = 3 run",
        "Samples by lane",
        "Support: ops by dtype",
        "E:no sort@lower",
        "Cost of a",
    ):
        assert text in done.stdout


def test_summary_of_the_latest_run_names_problems(here: Path) -> None:
    run = make_run(here / "more", "right", 3e9, [record("right", "add")])
    make_run(here / "more", "right", 2e9, [record("right", "add"), record("right", "sort")])
    done = conformance("summary", run, cwd=here)
    assert "PROBLEM: cases collected dropped from 2" in done.stdout


def test_a_run_cut_short_can_be_read(here: Path) -> None:
    run = store.new_run("cut", "pr", root=here / "cut", now=1.0)
    with store.RunWriter(run, "gw0") as writer:
        writer.record(record("cut", "add", message="half done"))
        writer.start("op:add:int64:static:fwd:samples#1")
    done = conformance("summary", run, cwd=here)
    assert "the run is not complete" in done.stdout
    assert "half done" in conformance("show", run, "op:add:*", cwd=here).stdout


def test_github_format(here: Path) -> None:
    done = conformance("findings", "2001", "--format", "github", cwd=here)
    assert done.returncode == 0
    assert "### Findings by fingerprint" in done.stdout
    assert "| unsupported | E:no sort@lower:sort" in done.stdout


def test_findings(here: Path) -> None:
    assert "crash:SIGSEGV@run:topk" in conformance("findings", "2001", cwd=here).stdout
    assert "E:no sort@lower " in conformance("findings", "2001", "--causes", cwd=here).stdout
    assert conformance("findings", "latest", cwd=here).stdout == "no failures\n"


def test_compare(here: Path) -> None:
    done = conformance("compare", "2001", "latest", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "only-right  unsupported: E:no sort  pass" in done.stdout
    assert "1 samples not compared: only in the left run" in done.stdout


def test_show(here: Path) -> None:
    done = conformance("show", "2001", "op:topk:int64:static:fwd:samples#0", cwd=here)
    assert "outcome            crash" in done.stdout
    assert done.stdout.rstrip().endswith("  message\n    died\n  traceback\n    a\n    b")
    assert "aten::sort: 2" in conformance("show", "latest", "op:sort:int64:static:fwd:samples", cwd=here).stdout
    lines = conformance("show", "2001", "op:*", "--json", cwd=here).stdout.splitlines()
    assert [json.loads(line)["subject"] for line in lines] == ["add", "sort", "topk"]


def test_query(here: Path) -> None:
    done = conformance(
        "query", "latest", "select subject, fallbacks['aten::sort'] as n from records order by 1", cwd=here
    )
    assert done.stdout.splitlines()[:2] == ["2 rows", "subject      n"]
    assert "sort         2" in done.stdout


def test_backends(here: Path) -> None:
    listed = json.loads(conformance("backends", "--json", cwd=here).stdout)
    assert {"eager", "dynamo", "mutant", "inductor", "spyre"} <= {each["name"] for each in listed}
    assert all(each["detail"] for each in listed)


def test_promote_then_lint(here: Path, tmp_path: Path) -> None:
    file = tmp_path / "left.toml"
    dry = conformance("promote", "2001", "--file", file, "--dry-run", cwd=here)
    assert "would be changed" in dry.stdout
    assert not file.exists()
    done = conformance("promote", "2001", "--file", file, cwd=here)
    assert done.returncode == 1
    assert "refused: op:topk:int64:static:fwd:samples#0: crash needs --issue URL" in done.stdout
    assert "has no `issue` and no `reason` yet" in done.stdout
    assert 'fingerprint = "E:no sort@lower:sort"' in file.read_text()
    lint = conformance("lint", file, "--no-cases", cwd=here)
    assert lint.returncode == 1
    assert f"{file}:1: reason-less: has neither `issue` nor `reason`" in lint.stdout
    file.unlink()
    done = conformance("promote", "2001", "--file", file, "--issue", "https://example.org/1", cwd=here)
    assert done.returncode == 0, done.stdout
    lint = conformance("lint", file, "--no-cases", cwd=here)
    assert (lint.returncode, lint.stdout) == (0, "1 files, no fault\n")
    assert "unchanged" in conformance("promote", "2001", "--file", file, cwd=here).stdout


def test_promote_needs_to_know_the_torch(here: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, "x", 1.0, [record("x", "add")], versions={})
    done = conformance("promote", run, "--file", tmp_path / "x.toml", cwd=here)
    assert done.returncode == 2
    assert "does not say with which torch" in done.stderr


def test_further_commands_come_from_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    class Point:
        def load(self) -> object:
            return lambda arguments: seen.append(arguments) or 3

    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [Point()])
    assert cli._status(["nightly", "--x", "1"]) == 3
    assert seen == [["--x", "1"]]


def test_a_bug_of_ours_is_not_called_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conformance.store.resolve", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli._status(["summary"])
