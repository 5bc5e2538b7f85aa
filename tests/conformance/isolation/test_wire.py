"""Frames arrive whole, however they were cut, and garbage is noticed."""

from __future__ import annotations

import socket
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.cases import Case, Direction, Options, ShapeMode
from conformance.isolation import wire

CASE = Case("op", "add", "float16", ShapeMode.STATIC, Direction.FORWARD)
FROM_CHILD = [
    wire.Ready(),
    wire.Starting(3, "digest", "exact"),
    wire.Recorded(msgspec.Raw(msgspec.msgpack.encode({"a": 1}))),
    wire.CaseDone(4, 1 << 40),
    wire.Failed("reason"),
    wire.Reaped(7, 139, 1, 0),
    wire.CaseList("ops", "ops", (CASE,), {"why": 2}, {"fact": [1]}, ""),
]
FROM_SUPERVISOR = [
    wire.ListCases("ops", Options()),
    wire.Fork(),
    wire.RunCase("ops", CASE, 2, (5,), Options(), 1.5, 1 << 30),
    wire.Go(),
]


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_messages_survive(pair):
    left, right = pair
    child, supervisor = wire.Channel(left, sender="supervisor"), wire.Channel(right, sender="child")
    for message in FROM_SUPERVISOR:
        supervisor.send(message)
        assert child.receive() == message
    for message in FROM_CHILD:
        child.send(message)
    assert supervisor.poll() == FROM_CHILD
    assert supervisor.poll() == []
    assert not supervisor.closed


@given(cuts=st.lists(st.integers(1, 40), max_size=40))
def test_frames_arrive_whole_however_they_are_cut(cuts):
    left, right = socket.socketpair()
    with left, right:
        supervisor = wire.Channel(right, sender="child")
        recorder, sink = socket.socketpair()
        with recorder, sink:
            sender = wire.Channel(recorder, sender="supervisor")
            for message in FROM_CHILD:
                sender.send(message)
            stream = sink.recv(1 << 20)
        found = []
        for cut in [*cuts, len(stream)]:
            piece, stream = stream[:cut], stream[cut:]
            left.sendall(piece)
            found += supervisor.poll()
    assert found == FROM_CHILD


def test_the_end_of_the_stream_is_noticed_after_what_came_before(pair):
    left, right = pair
    supervisor = wire.Channel(right, sender="child")
    wire.Channel(left, sender="supervisor").send(wire.Ready())
    left.close()
    assert supervisor.poll() == [wire.Ready()]
    assert supervisor.closed


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 64, struct.pack("<I", 3) + b"abc", struct.pack("<I", 1) + b"\x01"],
    ids=["length", "no msgpack", "no message"],
)
def test_garbage_is_noticed(pair, garbage):
    left, right = pair
    left.sendall(garbage)
    with pytest.raises(wire.BrokenStream):
        wire.Channel(right, sender="child").poll()


def test_a_torn_frame_at_the_end_is_dropped(pair):
    left, right = pair
    supervisor = wire.Channel(right, sender="child")
    left.sendall(struct.pack("<I", 100) + b"half")
    left.close()
    assert supervisor.poll() == []
    assert supervisor.closed


def test_receive_says_that_the_other_end_is_gone(pair):
    left, right = pair
    left.close()
    with pytest.raises(EOFError):
        wire.Channel(right, sender="child").receive()
