"""Counting: launches, opcodes and bytes inside a block, nested blocks, and nothing outside."""

import pytest
import torch

from spyre_backend.device import clock
from spyre_backend.program.opcodes import Elementwise
from spyre_backend.simulator import observe
from tests.spyre_backend.simulator.build import elementwise


def test_an_observer_sees_the_launches_of_its_block_only() -> None:
    x = torch.ones(10)
    elementwise(Elementwise.ADD, [x, x], torch.float32)
    with observe() as outer:
        elementwise(Elementwise.ADD, [x, x], torch.float32)
        with observe() as inner:
            elementwise(Elementwise.EXP, [x], torch.float32)
            elementwise(Elementwise.EXP, [x], torch.float32)
    elementwise(Elementwise.ADD, [x, x], torch.float32)
    assert (inner.launches, outer.launches) == (2, 3)
    assert inner.opcodes == {"load": 2, "exp": 2, "store": 2}
    assert {name for name, _ in outer.programs} == {"add", "exp"}
    assert (inner.bytes_loaded, inner.bytes_stored) == (80, 80)
    assert (outer.bytes_loaded, outer.bytes_stored) == (160, 120)


def test_the_clock_of_the_device_advances_by_what_a_launch_moves() -> None:
    host = torch.ones(1000)
    device = host.to("spyre")
    start = clock.now()
    elementwise(Elementwise.ADD, [host, host], torch.float32)
    assert clock.now() == start
    elementwise(Elementwise.ADD, [device, device], torch.float32)
    assert clock.now() - start == pytest.approx(3 * 4096 / 150e9 + 4096 * 0.00574e-9, rel=1e-3)  # whole sticks
