"""What fixing ops unlocks: tables by hand, and laws that hold for whatever blocks whatever."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import unlocking
from conformance.unlocking import alone, best, greedy, plan, smallest_sets, unlocked, weigh

OPS = "abcdefg"
MODELS = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"]
sets = st.frozensets(st.sampled_from(OPS), min_size=1, max_size=4)
blockers = st.dictionaries(st.sampled_from(MODELS), sets, max_size=8)
weights = st.dictionaries(st.sampled_from(MODELS), st.integers(0, 9).map(float))

TABLE = {
    "x": frozenset("a"),
    "y": frozenset("a"),
    "z": frozenset("ab"),
    "u": frozenset("cd"),
    "v": frozenset("cd"),
    "w": frozenset("bcd"),
}


@given(blockers, st.frozensets(st.sampled_from(OPS)), st.frozensets(st.sampled_from(OPS)))
def test_fixing_more_unlocks_no_less(found, some, more):
    assert unlocked(found, some) <= unlocked(found, some | more)


@given(blockers)
def test_fixing_all_unlocks_all_and_nothing_unlocks_none(found):
    assert unlocked(found, frozenset().union(*found.values()) if found else ()) == set(found)
    assert unlocked(found, ()) == set()


def brute(found, weight, size):
    ops = sorted(frozenset().union(*found.values()) if found else ())
    choices = combinations(ops, min(size, len(ops)))
    return max(unlocking.total(unlocked(found, choice), weight) for choice in choices)


@given(blockers, weights, st.integers(1, 7))
def test_the_best_set_is_the_best(found, weight, size):
    each = best(found, weight, size)
    assert each.exact
    assert len(each.fixed) <= size
    assert each.models == unlocked(found, each.fixed)
    assert each.weight == unlocking.total(each.models, weight) == brute(found, weight, size)


@given(blockers, weights, st.integers(1, 7))
def test_the_greedy_set_is_valid_and_no_better(found, weight, size):
    each = greedy(found, weight, size)
    assert len(each.fixed) <= size
    assert each.weight <= brute(found, weight, size)


@given(blockers, weights)
def test_a_search_that_is_cut_short_is_as_good_as_greedy_and_says_so(found, weight):
    each = best(found, weight, 4, steps=1)
    assert not each.exact
    assert each.weight >= greedy(found, weight, 4).weight


@given(blockers, weights)
def test_each_smallest_set_needs_all_its_ops(found, weight):
    for each in smallest_sets(found, weight):
        for op in each.fixed:
            assert unlocked(found, each.fixed - {op}) < each.models


@given(blockers, weights)
def test_plans_grow_and_end_with_everything(found, weight):
    steps = plan(found, weight, len(OPS))
    gains = [each.weight for each in steps]
    assert gains == sorted(set(gains))
    assert (gains[-1] if gains else 0) == unlocking.total(found, weight)


@given(blockers, weights)
def test_every_blocker_is_listed_once(found, weight):
    listed = alone(found, weight)
    assert sorted(each.op for each in listed) == sorted(frozenset().union(*found.values()) if found else ())
    for each in listed:
        assert each.models <= each.waiting
        assert each.models == unlocked(found, {each.op})


def test_a_table():
    assert [(each.op, each.weight, each.waiting_weight) for each in alone(TABLE, {})] == [
        ("a", 2, 3),
        ("c", 0, 3),
        ("d", 0, 3),
        ("b", 0, 2),
    ]
    assert [("".join(sorted(each.fixed)), each.weight) for each in smallest_sets(TABLE, {})] == [
        ("a", 2),
        ("ab", 3),
        ("bcd", 3),
        ("cd", 2),
    ]
    assert [(len(each.fixed), each.weight) for each in plan(TABLE, {}, 4)] == [(1, 2), (2, 3), (3, 4), (4, 6)]


def test_weights_decide():
    heavy = {"w": 10.0}
    assert best(TABLE, heavy, 3).fixed == frozenset("bcd")
    assert plan(TABLE, heavy, 1)[0].fixed == frozenset("a")


@pytest.mark.parametrize(("model", "weight"), [("own/a", 30), ("own/b", 10), ("priority/x", 5), ("llama.causal-lm", 1)])
def test_a_name_goes_before_a_glob_and_the_first_glob_wins(model, weight):
    patterns = {"own/*": 10.0, "own/a": 30.0, "priority/*": 5.0, "*": 1.0}
    assert weigh([model], patterns) == {model: weight}


def test_what_no_pattern_names_counts_one():
    assert weigh(["x"], {"y": 3.0}) == {"x": 1.0}
