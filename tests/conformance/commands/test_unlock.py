"""`conformance unlock` on runs made by hand: evidence of several runs is joined, mistakes are one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conformance import signatures, store, traced
from conformance.cases import Case, Direction, ShapeMode
from conformance.cli import main
from conformance.outcomes import Outcome
from conformance.records import Manifest, Record
from conformance.signatures import Signature

SORT = signatures.encode(Signature("aten.sort.stable", "float32", [{"tensor": ["float32", [4]]}], {}, {}))
CUMSUM = signatures.encode(Signature("aten.cumsum.default", "float32", [{"tensor": ["float32", [4]]}, 0], {}, {}))


def model(name: str, outcome: Outcome = Outcome.PASS, backend: str = "b", **fields: Any) -> Record:
    case = Case("model", name, "float32", ShapeMode.STATIC, Direction.FORWARD)
    return Record.of(case, 0, suite="models", backend=backend, outcome=outcome, **fields)


def call(text: str, outcome: Outcome) -> Record:
    signature = signatures.decode(text)
    case = Case("op", signature.op, signature.dtype, ShapeMode.STATIC, Direction.FORWARD, "traced")
    return Record.of(case, signatures.number(text), suite="ops", backend="b", outcome=outcome)


def run(root: Path, name: str, *records: Record, facts: dict[str, Any] | None = None) -> None:
    with store.RunWriter(root / name, "gw0") as writer:
        for each in records:
            writer.record(each)
    manifest = Manifest(run=name, started=1.0, backend=records[0].backend, suite_facts={"models": facts or {}})
    store.merge(root / name, manifest)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.RUNS_VARIABLE, str(tmp_path))
    monkeypatch.delenv(traced.VARIABLE, raising=False)
    packed = {"x": [SORT], "y": [SORT, CUMSUM], "z": []}
    run(tmp_path, "trace", *(model(n, backend="trace", traced=signatures.pack(t)) for n, t in packed.items()))
    weights = {"weights": {"y": 4.0, "*": 1.0}}
    run(
        tmp_path,
        "models",
        model("x", fallbacks={"aten::sort.stable": 1}),
        model("y", Outcome.UNSUPPORTED, message="no lowering for aten.sort.stable"),
        model("z"),
        facts=weights,
    )
    run(tmp_path, "ops", call(CUMSUM, Outcome.WRONG), call(SORT, Outcome.PASS))
    return tmp_path


def unlock(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["unlock", *arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


def blocked(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, set[str]]:
    status, text = unlock(*arguments, "--format", "json", capsys=capsys)
    assert status == 0
    return {name: set(found["blockers"]) for name, found in json.loads(text)["blocked"].items()}


def test_what_models_say_and_what_their_calls_say(root, capsys):
    assert blocked("models", capsys=capsys) == {"x": {"aten::sort.stable"}, "y": {"aten::sort.stable"}}
    assert blocked("models", "ops", capsys=capsys)["y"] == {"aten::sort.stable", "aten::cumsum"}
    assert blocked("models", "--goal", "runs", capsys=capsys) == {"y": {"aten::sort.stable"}}


def test_weights_of_the_run_and_of_a_file(root, capsys, tmp_path):
    _, text = unlock("models", "--format", "json", capsys=capsys)
    assert json.loads(text)["alone"][0]["weight"] == 5.0
    (tmp_path / "w.toml").write_text('[weights]\nx = 100\n"*" = 2\n')
    _, text = unlock("models", "--format", "json", "--weights", str(tmp_path / "w.toml"), capsys=capsys)
    assert json.loads(text)["alone"][0]["weight"] == 104.0


def test_models_without_a_run_of_their_own(root, capsys):
    assert blocked("ops", capsys=capsys) == {"y": {"aten::cumsum"}}


def test_it_says_where_calls_come_from(root, capsys):
    status, text = unlock("models", "ops", capsys=capsys)
    assert status == 0
    assert f"calls of models: 2 in {root / 'trace' / traced.FILE}" in text
    assert "Ops alone" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["models", "--goal", "fly"], "--goal 'fly' is unknown; one of on-device, runs"),
        (["models", "trace"], "the runs are of several backends: b, trace"),
        (["models", "--traced", "nope"], "no run 'nope'"),
        (["models", "--traced", "models"], "has traced no model"),
        (["models", "--weights", "nope.toml"], "--weights: there is no file nope.toml"),
        (["models", "--format", "xml"], "--format 'xml' is unknown"),
        (["nope"], "no run 'nope'"),
    ],
)
def test_a_mistake_is_one_line(root, capsys, arguments, said):
    status, text = unlock(*arguments, capsys=capsys)
    assert (status, said in text, len(text.splitlines())) == (2, True, 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("x = 1", "has no table [weights]"),
        ("[weights", "is not a TOML file"),
        ('[weights]\nx = "much"', "'x' weighs 'much', which is no number from 0 on"),
        ("[weights]\nx = -1", "'x' weighs -1, which is no number from 0 on"),
    ],
)
def test_a_bad_file_of_weights_is_one_line(root, capsys, tmp_path, content, said):
    (tmp_path / "w.toml").write_text(content)
    status, text = unlock("models", "--weights", str(tmp_path / "w.toml"), capsys=capsys)
    assert (status, said in text) == (2, True)


def test_runs_that_have_neither_models_nor_calls(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(store.RUNS_VARIABLE, str(tmp_path))
    monkeypatch.delenv(traced.VARIABLE, raising=False)
    run(tmp_path, "ops", call(SORT, Outcome.PASS))
    status, text = unlock("ops", capsys=capsys)
    assert (status, "no record of a model in ops" in text) == (2, True)


def test_traced_calls_are_shown_and_merged(root, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["traced", "trace", "trace", "-o", str(tmp_path / "all.parquet")])
    said = capsys.readouterr().out
    assert ended.value.code in (0, None)
    assert "2 calls of 2 ops by 2 models" in said
    assert traced.read(tmp_path / "all.parquet") == traced.read(root / "trace" / traced.FILE)
