"""What a sweep of models says."""

from __future__ import annotations

from conformance.cases import Case, Direction, ShapeMode
from conformance.outcomes import Outcome, Stage
from conformance.records import GraphBreak, Recompile, Record
from conformance.report import models
from conformance.report.comparison import pairs


def record(subject, outcome=Outcome.PASS, index=0, mode=ShapeMode.STATIC, kind="model", **fields):
    case = Case(kind, subject, "float32", mode, Direction.FORWARD)
    return Record.of(case, index, suite="models", backend="b", outcome=outcome, **fields)


BREAK = GraphBreak("Unsupported Tensor.item()", "transformers/x.py:7", 2)


def cells(table, *columns):
    return [tuple(dict(zip(table.headers, row, strict=True))[c] for c in columns) for row in table.rows]


def test_a_model_counts_once_by_its_worst_sample():
    records = [
        record("a"),
        record("b", Outcome.BUDGET, breaks=[BREAK]),
        record("c"),
        record("c", Outcome.WRONG, index=1),
        record("d", Outcome.SKIPPED),
        record("e", Outcome.BUDGET),
        record("f", Outcome.TIMEOUT, stage=Stage.COMPARE),
        record("g", Outcome.TIMEOUT, stage=Stage.RUN),
        record("add", kind="op"),
    ]
    table = models.variant_table(records)
    names = ("models", "right", "not right", "not judged")
    assert cells(table, *names) == [(7, 3, 2, 2)]
    assert table.rows[0][3:6] == (2, 1, 1)  # whole, broken, recompile


def test_ways_of_checking_are_lines_of_their_own():
    table = models.variant_table([record("a"), record("a", mode=ShapeMode.DYNAMIC)])
    assert [row[0].split()[1] for row in table.rows] == ["dynamic", "static"]


def test_breaks_are_counted_by_models_and_times():
    records = [record("a", breaks=[BREAK]), record("b", breaks=[BREAK]), record("b", index=1, breaks=[BREAK])]
    (row,) = models.break_table(records).rows
    assert row == ("Unsupported Tensor.item()", "transformers/x.py:7", 2, 6, "a")


def test_dumps_of_objects_do_not_divide_a_reason():
    dumps = [GraphBreak(f"Unsupported context manager (on {'x' * 100}{n})", "f.py:1") for n in range(2)]
    (row,) = models.break_table([record("a", breaks=dumps[:1]), record("b", breaks=dumps[1:])]).rows
    assert row[:3] == ("Unsupported context manager", "f.py:1", 2)


def test_only_recompiles_beyond_the_budget_are_listed_without_their_comment():
    guard = Recompile("L['x'].size()[0] == 16      # if x.shape[0] % 16:  # transformers/y.py:3 in f", "f.py:1")
    records = [record("a", recompiles=[guard]), record("b", Outcome.BUDGET, recompiles=[guard])]
    (row,) = models.recompile_table(records).rows
    assert row == ("L['x'].size()[0] == 16", "f.py:1", 1, 1, "b")


def test_new_gone_and_changed_models_are_told_apart_from_regressions():
    before = [
        record("same", digest="1"),
        record("regressed", digest="1"),
        record("changed", digest="1"),
        record("gone", digest="1"),
        record("fixed", Outcome.WRONG, digest="1", fingerprint="f"),
        record("both", digest="1"),
        record("both", index=1, digest="1"),
    ]
    after = [
        record("same", digest="1"),
        record("regressed", Outcome.WRONG, digest="1", fingerprint="f"),
        record("changed", Outcome.WRONG, digest="2", fingerprint="f"),
        record("new", digest="1"),
        record("fixed", digest="1"),
        record("both", Outcome.ERROR, digest="1", fingerprint="g"),
        record("both", Outcome.ERROR, index=1, digest="2", fingerprint="g"),
    ]
    table = models.change_table(pairs(before, after))
    assert {row[0]: row[2] for row in table.rows} == {
        "regressed": "both, regressed",
        "changed-test": "changed",
        "fixed": "fixed",
        "new": "new",
        "gone": "gone",
        "unchanged": "same",
    }


def test_each_model_and_check_is_a_line_with_the_runs_side_by_side():
    again = Recompile("L['x'].size()[0] == 16", "f.py:1", 3)
    one = [
        record("b", Outcome.BUDGET, breaks=[BREAK], compile_s=2.0),
        record("a", mode=ShapeMode.DYNAMIC, compile_s=1.0),
        record("a", Outcome.BUDGET, 1, mode=ShapeMode.DYNAMIC, recompiles=[again], compile_s=0.5),
        record("add", kind="op"),
    ]
    other = [
        record("a", Outcome.WRONG, mode=ShapeMode.DYNAMIC, stage=Stage.COMPARE, culprit_op="aten::gelu"),
        record("b", Outcome.SKIPPED, reason="not here"),
        record("a", Outcome.SKIPPED, 1, mode=ShapeMode.DYNAMIC, reason="not here"),
    ]
    assert models.model_table({"one": one, "other": other}).rows == [
        ("a", "dynamic", "float32", "right; right, 3 again", 1.5, "wrong at compare, aten::gelu", None),
        ("b", "static", "float32", "right, 2 breaks", 2.0, "skipped: not here", None),
    ]
    assert models.model_table({"one": one[:1], "other": []}).rows[0][5:] == ("-", None)
    timed = record("b", compile_s=1.0, device_s=0.25)
    table = models.model_table({"one": one[:1], "other": [timed]})
    assert (table.headers[3:], table.rows) == (
        ("one", "compile s", "other", "compile s", "device ms"),
        [("b", "static", "float32", "right, 2 breaks", 2.0, "right", 1.0, 250.0)],
    )
    ours = record("a", Outcome.TIMEOUT, stage=Stage.COMPARE)
    assert models.model_table({"one": [ours]}).rows == [
        ("a", "static", "float32", "not judged: timeout at compare", None)
    ]
