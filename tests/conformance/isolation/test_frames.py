"""Calls below `with_room` map no memory for their frames, wherever in a chunk they happen to be."""

import resource

import pytest

from conformance.isolation.frames import with_room


def faults_of_calls_at_every_depth() -> int:
    def leaf(a, b, c, d):
        return a

    def at(depth):
        if depth:
            return at(depth - 1)
        for _ in range(300):
            leaf(1, 2, 3, 4)
        return None

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for depth in range(300):
        at(depth)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_no_call_maps_a_chunk():
    with_room(faults_of_calls_at_every_depth)  # the first one touches the memory
    assert with_room(faults_of_calls_at_every_depth) < 100


def test_result_and_error_come_through():
    assert with_room(lambda: 3) == 3
    with pytest.raises(KeyError):
        with_room(lambda: {}["x"])
    assert with_room(lambda: with_room(lambda: "nested")) == "nested"
