"""The trace of a sequence of launches: rows, times and what a viewer needs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from spyre_backend.cost import Cost, cost, timeline
from tests.spyre_backend.cost.test_cost import copy, product, softmax

PROGRAMS = [softmax(70, 200), product(2048, 2048, 2048), copy(3, 64)]


@pytest.fixture
def launches() -> list[tuple[str, Cost]]:
    return [(program.name, cost(program, {})) for program in PROGRAMS]


def test_launches_follow_each_other_and_nothing_outlasts_its_launch(launches: list[tuple[str, Cost]]) -> None:
    events = list(timeline.events(launches))
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(rows.values()) == ["launches", "memory", *(f"core {n}" for n in range(32))]
    timed = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in timed} <= set(rows)
    whole = [event for event in timed if rows[event["tid"]] == "launches"]
    assert [event["name"] for event in whole] == [program.name for program in PROGRAMS]
    assert whole[0]["ts"] == 0
    for one, following in itertools.pairwise(whole):
        assert following["ts"] == pytest.approx(one["ts"] + one["dur"])
    for event in timed:
        launch = next(each for each in reversed(whole) if each["ts"] <= event["ts"])
        assert event["dur"] <= launch["dur"] * (1 + 1e-9)


def test_a_core_with_a_smaller_share_is_busy_for_less_time(launches: list[tuple[str, Cost]]) -> None:
    found = dict(launches)["softmax"]  # 70 rows on 24 cores: 23 have three, one has one
    assert found.division.cores == 24
    seconds = [seconds for _, seconds in found.by_core()]
    assert seconds[:23] == [found.vector_s] * 23
    assert seconds[23] == pytest.approx(found.vector_s / 3)


def test_the_file_is_json_that_says_what_bounds_a_launch(launches: list[tuple[str, Cost]], tmp_path: Path) -> None:
    timeline.save(launches, tmp_path / "trace.json")
    read = json.loads((tmp_path / "trace.json").read_text())
    (said,) = (event["args"] for event in read["traceEvents"] if event["name"] == "product")
    assert said["bound by"] == "products"
    assert said["multiply-accumulates"] == 2048**3
    with pytest.raises(OSError, match="nowhere"):
        timeline.save(launches, tmp_path / "nowhere" / "trace.json")
