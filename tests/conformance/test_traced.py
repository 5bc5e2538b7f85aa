"""Traced calls are kept once each, with the models that make them, under numbers that stay when models are added."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import signatures, store, traced
from conformance.cases import Case, Direction, ShapeMode
from conformance.outcomes import Outcome
from conformance.records import Manifest, Record
from conformance.signatures import Signature
from conformance.traced import TracedError

TEXTS = [signatures.encode(Signature("aten.relu.default", "float32", [n], {}, {})) for n in range(40)]


def record(model: str, *texts: str, direction: Direction = Direction.FORWARD) -> Record:
    case = Case("model", model, "float32", ShapeMode.STATIC, direction)
    packed = signatures.pack(texts)
    return Record.of(case, 0, suite="models", backend="trace", outcome=Outcome.PASS, traced=packed)


def test_each_call_is_there_once_with_all_that_make_it():
    a, b = TEXTS[:2]
    found = traced.collect([record("x", a, b), record("y", a), record("x", a, direction=Direction.BACKWARD)])
    assert {each.signature: each.users for each in found} == {
        a: ("model:x:bwd", "model:x:fwd", "model:y:fwd"),
        b: ("model:x:fwd",),
    }
    assert {each.models for each in found} == {("x", "y"), ("x",)}


@given(st.lists(st.sampled_from(TEXTS), unique=True), st.lists(st.sampled_from(TEXTS), unique=True))
def test_numbers_stay_when_models_are_added(before, added):
    first = {each.signature: each.number for each in traced.collect([record("x", *before)])}
    later = {each.signature: each.number for each in traced.collect([record("y", *added), record("x", *before)])}
    assert first.items() <= later.items()


def test_equal_numbers_are_told_apart(monkeypatch):
    monkeypatch.setattr(signatures, "number", lambda text, attempt=0: attempt)
    found = traced.collect([record("x", *TEXTS[:3])])
    assert sorted(each.number for each in found) == [0, 1, 2]


def test_files_say_what_was_written_and_merge(tmp_path: Path):
    one, other = traced.collect([record("x", *TEXTS[:3])]), traced.collect([record("y", *TEXTS[1:5])])
    traced.write(tmp_path / "one.parquet", one)
    assert traced.read(tmp_path / "one.parquet") == one
    both = traced.merged([one, other])
    assert both == traced.collect([record("x", *TEXTS[:3]), record("y", *TEXTS[1:5])])


def test_calls_of_ops_and_of_parts_are_left_out():
    case = Case("op", "relu", "float32", ShapeMode.STATIC, Direction.FORWARD)
    of_op = Record.of(case, 0, suite="ops", backend="trace", outcome=Outcome.PASS, traced=signatures.pack(TEXTS[:2]))
    assert traced.collect([of_op]) == []


def run(root: Path, name: str, started: float, *records: Record) -> Path:
    path = root / name
    with store.RunWriter(path, "gw0") as writer:
        for each in records:
            writer.record(each)
    store.merge(path, Manifest(run=name, started=started))
    return path


def test_a_merged_run_has_them_beside_its_records(tmp_path: Path):
    path = run(tmp_path, "one", 1.0, record("x", *TEXTS[:3]))
    assert len(traced.read(path / traced.FILE)) == 3
    assert [each.traced for each in store.read(path)] == [""]
    assert not (run(tmp_path, "other", 2.0, record("x")) / traced.FILE).exists()


def test_the_newest_run_with_calls_is_found(tmp_path: Path, monkeypatch):
    monkeypatch.setenv(store.RUNS_VARIABLE, str(tmp_path))
    monkeypatch.delenv(traced.VARIABLE, raising=False)
    with pytest.raises(TracedError, match=r"--backend trace.* makes one"):
        traced.locate()
    first = run(tmp_path, "one", 1.0, record("x", *TEXTS[:3]))
    second = run(tmp_path, "two", 2.0, record("x", *TEXTS[:2]))
    none = run(tmp_path, "three", 3.0, record("x"))
    assert traced.locate() == second / traced.FILE
    assert traced.locate("one") == first / traced.FILE
    assert traced.locate(str(first / traced.FILE)) == first / traced.FILE
    monkeypatch.setenv(traced.VARIABLE, str(first))
    assert traced.locate() == first / traced.FILE
    with pytest.raises(TracedError, match="traced no model"):
        traced.locate(str(none))


def test_what_is_no_such_file_is_said(tmp_path: Path):
    (tmp_path / "x.parquet").write_text("nonsense")
    with pytest.raises(TracedError, match="not a file of traced calls"):
        traced.read(tmp_path / "x.parquet")


def test_files_are_small(tmp_path: Path):
    texts = [
        signatures.encode(Signature("aten.mm.default", "float32", [{"tensor": ["float32", [n, 64 + n % 7]]}], {}, {}))
        for n in range(3000)
    ]
    models = [record(f"architecture_{n}.causal-lm", *texts[n * 5 : n * 5 + 200]) for n in range(0, 560)]
    traced.write(tmp_path / "x.parquet", traced.collect(models))
    assert (tmp_path / "x.parquet").stat().st_size < 400_000
