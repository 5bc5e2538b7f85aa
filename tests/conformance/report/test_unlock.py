"""The tables of `conformance unlock` say what was computed, and JSON leaves nothing out."""

from __future__ import annotations

import json

from conformance import unlocking
from conformance.blockers import Diagnosis, Evidence, Goal
from conformance.report import unlock
from conformance.report.table import Format, render

DIAGNOSIS = Diagnosis(
    unlocked={"done.causal-lm"},
    unknown={"lost.causal-lm"},
    evidence={
        "a.causal-lm": {"aten::sort.stable": {Evidence.NAMED}},
        "own/mine": {"aten::sort.stable": {Evidence.CALL}},
        "b.masked-lm": {"aten::sort.stable": {Evidence.FALLBACK}, "cause: crash:SIGSEGV": {Evidence.UNEXPLAINED}},
    },
    dtypes={"aten::sort.stable": {"float32"}},
)
WEIGHTS = {"own/mine": 10.0}


def found(goal: Goal = Goal.DEVICE) -> unlock.Unlocks:
    waiting = DIAGNOSIS.blockers
    return unlock.Unlocks(
        goal=goal,
        backend="spyre",
        diagnosis=DIAGNOSIS,
        weights=WEIGHTS,
        alone=unlocking.alone(waiting, WEIGHTS),
        sets=unlocking.smallest_sets(waiting, WEIGHTS),
        plan=unlocking.plan(waiting, WEIGHTS, 5),
        notes=["calls of models: none"],
    )


def test_the_heading_accounts_for_every_model() -> None:
    lines = unlock.report(found()).lines
    assert "models: 5 = 1 there + 3 blocked + 1 unknown (not run, and no call of theirs known to fail)" in lines
    assert "weight: 1 of 14 (7.1%) there, 12 blocked by 2 ops and causes" in lines
    assert lines[-1] == "calls of models: none"


def test_single_ops() -> None:
    table = unlock.alone_table(found())
    assert [row[:5] for row in table.rows] == [
        ("aten::sort.stable", 11.0, 2, 12.0, 3),
        ("cause: crash:SIGSEGV", 0, 0, 1.0, 1),
    ]
    assert table.rows[0][5] == "named in the failure, ran on the host, call fails alone"
    assert table.rows[0][6] == "float32"
    assert table.rows[0][7] == "a.causal-lm, own/mine"


def test_sets_and_plan() -> None:
    assert [row[:4] for row in unlock.set_table(found()).rows] == [
        (2, 12.0, 3, "aten::sort.stable, cause: crash:SIGSEGV")
    ]
    rows = unlock.plan_table(found()).rows
    assert [(row[0], row[1], row[5]) for row in rows] == [
        (1, 11.0, "+aten::sort.stable"),
        (2, 12.0, "+cause: crash:SIGSEGV"),
    ]


def test_long_tables_say_what_is_left_out() -> None:
    assert "1 more; `conformance unlock RUN --all` lists them." in unlock.alone_table(found(), 1).notes


def test_it_renders_in_every_format() -> None:
    for to in Format:
        assert "Ops alone" in render(unlock.report(found()), to)
    data = json.loads(json.dumps(unlock.as_data(found())))
    assert data["blocked"]["own/mine"] == {"weight": 10.0, "blockers": {"aten::sort.stable": ["call fails alone"]}}
    assert data["there"] == ["done.causal-lm"]
    assert [each["op"] for each in data["alone"]] == ["aten::sort.stable", "cause: crash:SIGSEGV"]
    assert data["plan"][-1] == {
        "ops": ["aten::sort.stable", "cause: crash:SIGSEGV"],
        "models": ["a.causal-lm", "b.masked-lm", "own/mine"],
        "weight": 12.0,
        "exact": True,
    }
