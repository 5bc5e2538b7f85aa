"""Results survive torn lines, resumed runs, older and newer writers; DuckDB sees what Python sees."""

from __future__ import annotations

import math
import multiprocessing
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance import store
from conformance.cases import Case, Direction, ShapeMode
from conformance.outcomes import Outcome, Stage, Support
from conformance.records import Accounting, GraphBreak, Manifest, Recompile, Record

CASE = Case("op", "sort", "int64", ShapeMode.STATIC, Direction.FORWARD)


def record(index: int = 0, outcome: Outcome = Outcome.PASS, **fields: object) -> Record:
    return Record.of(CASE, index, suite="ops", backend="spyre", outcome=outcome, **fields)


def full_record() -> Record:
    """Every kind of field set, strings that need quoting included."""
    return record(
        7,
        Outcome.ERROR,
        stage=Stage.LOWER,
        support=Support.FALLBACK,
        fingerprint="E:it's @lower:sort",
        message='line one\nline "two" \\ é\u2028',
        rungs={"dynamo": "pass"},
        error=math.inf,
        slack=0.5,
        graphs=2,
        breaks=[GraphBreak("reason", "a.py:3", 2)],
        recompiles=[Recompile("L['x'].size()[0] == 3")],
        fallbacks={"aten::sort.stable": 3},
        compile_stages_s={"lower": 0.25},
        peak_memory=2**40,
        exit_code=-11,
        signal="SIGSEGV",
        started=1.5,
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return store.new_run("spyre", "smoke", root=tmp_path / "runs", now=0)


def write(run: Path, *records: Record, worker: str = "gw0") -> None:
    with store.RunWriter(run, worker) as writer:
        for each in records:
            writer.start(each.sample)
            writer.record(each)


def test_the_same_records_from_lines_and_from_parquet(run: Path) -> None:
    records = [record(0), full_record()]
    write(run, *records)
    assert store.read(run) == records
    store.merge(run)
    assert store._parquet_is_current(run)
    assert store.read(run) == records


def test_nan_survives(run: Path) -> None:
    write(run, record(error=math.nan, slack=-math.inf))
    for _ in range(2):
        (seen,) = store.read(run)
        assert seen.error is not None
        assert math.isnan(seen.error)
        assert seen.slack == -math.inf
        store.merge(run)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=30, deadline=None)
@given(
    message=TEXT, counts=st.dictionaries(TEXT, st.integers(-(2**62), 2**62), max_size=3), error=st.floats() | st.none()
)
def test_lines_round_trip(message: str, counts: dict[str, int], error: float | None) -> None:
    each = record(message=message, fallbacks=counts, error=error)
    line = store.encode(each)
    assert b"\n" not in line
    back = msgspec.json.decode(line, type=Record, strict=False)
    assert store.encode(back) == line
    assert (back.message, back.fallbacks) == (message, counts)


def test_merging_twice_changes_nothing(run: Path) -> None:
    write(run, record(0), record(1))
    first = store.merge(run, Manifest(run=run.name, started=3.0, backend="spyre", complete=True))
    content = (run / store.MANIFEST).read_bytes(), store.read(run)
    assert store.merge(run) == first
    assert content == ((run / store.MANIFEST).read_bytes(), store.read(run))
    assert first.records == 2
    assert sorted(p.name for p in run.iterdir()) == ["manifest.json", "records.parquet", "worker-gw0.jsonl"]


def test_a_run_without_lines_keeps_its_records(run: Path) -> None:
    write(run, record(0))
    store.merge(run)
    (run / "worker-gw0.jsonl").unlink()
    assert store.merge(run).records == 1
    assert len(store.read(run)) == 1


def test_an_empty_run_merges(run: Path) -> None:
    store.RunWriter(run, "gw0").close()
    assert store.merge(run).records == 0
    assert store.read(run) == []


def test_a_torn_line_costs_one_record_and_not_the_next(run: Path) -> None:
    write(run, record(0), record(1))
    path = run / "worker-gw0.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert [r.index for r in store.read(run)] == [0]
    write(run, record(2))
    log = store.read_log(run)
    assert [r.index for r in log.records] == [0, 2]
    assert log.torn == 1
    assert log.in_flight == [CASE.sample_id(1)]


def test_a_line_that_is_whole_but_wrong_is_an_error(run: Path) -> None:
    (run / "worker-x.jsonl").write_text('{"event":"record","record":{"sample":"s"}}\n')
    with pytest.raises(store.StoreError, match=r"worker-x.jsonl:1: .*missing required field"):
        store.read(run)


def test_what_is_done_and_what_was_in_flight(run: Path) -> None:
    write(run, record(0), record(1, Outcome.INFRA), record(2, Outcome.CRASH))
    with store.RunWriter(run, "gw1") as writer:
        writer.start(CASE.sample_id(3))
        writer.case_done(str(CASE), samples=4)
    assert store.done(run) == {CASE.sample_id(0), CASE.sample_id(2)}
    assert store.in_flight(run) == [CASE.sample_id(3)]
    assert store.read_log(run).cases[str(CASE)].samples == 4


@pytest.mark.parametrize(
    ("outcomes", "kept"),
    [
        ([Outcome.INFRA, Outcome.PASS], Outcome.PASS),
        ([Outcome.PASS, Outcome.INFRA], Outcome.PASS),
        ([Outcome.CRASH, Outcome.PASS], Outcome.PASS),
        ([Outcome.PASS, Outcome.WRONG, Outcome.INFRA], Outcome.WRONG),
        ([Outcome.INFRA, Outcome.INFRA], Outcome.INFRA),
    ],
)
def test_of_several_records_the_last_that_says_something_wins(
    run: Path, outcomes: list[Outcome], kept: Outcome
) -> None:
    for position, outcome in enumerate(outcomes):  # names in reverse: time decides, not the file
        write(run, record(0, outcome, started=float(position)), worker=f"w{9 - position}")
    assert [r.outcome for r in store.read(run)] == [kept]


def test_readers_accept_older_and_extended_rows(run: Path) -> None:
    write(run, record(0))
    line = (run / "worker-gw0.jsonl").read_text().replace('"suite":"ops"', '"suite":"ops","of_the_future":[1]')
    (run / "worker-gw0.jsonl").write_text(line)
    assert store.read(run) == [record(0)]


def test_parquet_with_missing_and_unknown_columns(run: Path) -> None:
    import duckdb

    write(run, record(0, fingerprint="F"))
    store.merge(run)
    (run / "worker-gw0.jsonl").unlink()
    path = run / store.RECORDS
    duckdb.sql(f"CREATE TABLE t AS SELECT * EXCLUDE (rungs, slack), 1 AS novel FROM read_parquet('{path}')")
    duckdb.sql(f"COPY t TO '{path}' (FORMAT parquet)")
    assert store.read(run) == [record(0, fingerprint="F")]


def test_a_newer_schema_is_refused_clearly(run: Path) -> None:
    write(run, record(0))
    path = run / "worker-gw0.jsonl"
    path.write_text(path.read_text().replace('"suite":"ops"', '"suite":"ops","schema_version":99'))
    with pytest.raises(store.StoreError, match="schema version 99, this installation reads up to 1"):
        store.read(run)


def test_sql_sees_maps_structs_and_infinities(run: Path) -> None:
    write(run, record(0), full_record())
    expected = [(2, math.inf, 3, "a.py:3")]
    sql = "SELECT count(*), max(error), sum(fallbacks['aten::sort.stable']), max(breaks[1].place) FROM records"
    assert store.query(run, sql).rows == expected
    store.merge(run)
    assert store.query(run, sql) == store.Table(store.query(run, sql).columns, expected)


def test_sql_over_two_runs(run: Path) -> None:
    other = store.new_run("spyre", "smoke", root=run.parent, now=0)
    assert other.name == run.name + "-2"
    write(run, record(0))
    write(other, record(0), record(1))
    store.merge(other)
    table = store.query([run, other], "SELECT run, count(*) AS n FROM records GROUP BY run ORDER BY run")
    assert table == store.Table(["run", "n"], [(run.name, 1), (other.name, 2)])


def test_bad_sql_is_one_line(run: Path) -> None:
    write(run, record(0))
    with pytest.raises(store.StoreError, match=r"^query: ") as caught:
        store.query(run, "SELECT nonsense FROM records")
    assert "\n" not in str(caught.value)


def test_resolve(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    with pytest.raises(store.StoreError, match="no run in"):
        store.resolve("latest", root)
    first, second = (store.new_run("spyre", tier, root=root, now=when) for tier, when in (("pr", 1e9), ("smoke", 2e9)))
    store.write_manifest(first, Manifest(run=first.name, started=1e9))
    store.write_manifest(second, Manifest(run=second.name, started=2e9))
    (root / "not-a-run").mkdir()
    assert store.resolve("latest", root) == second
    assert store.resolve(first, root) == first
    assert store.resolve(first.name, root) == first
    assert store.resolve("2001", root) == first
    with pytest.raises(store.StoreError, match=r"ambiguous: 2001.*, 2033"):
        store.resolve("20", root)
    with pytest.raises(store.StoreError, match=r"no run 'x': give a directory, or an id.*2033"):
        store.resolve("x", root)


def test_names_of_backends_become_names_of_directories(tmp_path: Path) -> None:
    path = store.new_run("my/file.py:Thing", "pr", root=tmp_path, now=0)
    assert path.name == "19700101-000000-my-file.py-Thing-pr"


def test_manifest_round_trip(run: Path) -> None:
    manifest = Manifest(
        run=run.name, started=1.0, options={"tier": "pr"}, accounting=Accounting(cases_collected=3, cases_lost=["a"])
    )
    store.write_manifest(run, manifest)
    assert store.read_manifest(run) == manifest


def test_a_broken_manifest_names_the_file(run: Path) -> None:
    (run / store.MANIFEST).write_text('{"run": 3}')
    with pytest.raises(store.StoreError, match=r"manifest.json: "):
        store.read_manifest(run)


def _append(run: Path, worker: str, first: int, count: int) -> None:
    with store.RunWriter(run, worker) as writer:
        for index in range(first, first + count):
            writer.record(record(index, message="x" * 5000))


def test_processes_that_share_a_file_do_not_tear_lines(run: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append, args=(run, "shared", 200 * n, 200)) for n in range(3)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    log = store.read_log(run)
    assert log.torn == 0
    assert sorted(r.index for r in log.records) == list(range(600))


def test_a_killed_writer_leaves_what_it_wrote(run: Path) -> None:
    body = (
        "import os, sys; from conformance import store; w = store.RunWriter(sys.argv[1], 'w');"
        f"w.start({CASE.sample_id(5)!r}); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", body, str(run)], check=False).returncode == -9
    assert store.in_flight(run) == [CASE.sample_id(5)]


def test_importing_needs_no_torch() -> None:
    body = "import sys, conformance.store, conformance.outcomes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", body], check=False).returncode == 0
