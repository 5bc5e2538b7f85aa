"""Core by core: the same results, and shares that overlap or leave gaps are seen."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from spyre_backend.cost import Cost, Division
from spyre_backend.simulator import checking, kernel
from spyre_backend.simulator.kernel import Kernel
from tests.spyre_backend.cost.test_cost import copy, product, softmax
from tests.spyre_backend.simulator.build import run


@pytest.fixture
def core_by_core(monkeypatch):
    monkeypatch.setattr(checking, "DIVISION", True)
    kernel.load.cache_clear()


def test_a_launch_core_by_core_gives_what_the_whole_does(core_by_core, monkeypatch):
    ran = []
    divided = checking.run_divided
    monkeypatch.setattr(
        checking, "run_divided", lambda bound, buffers: (ran.append(bound.cost.division.cores), divided(bound, buffers))
    )
    x, out = torch.randn(70, 200).half(), torch.empty(70, 200).half()
    run(softmax(70, 200), x, out)
    torch.testing.assert_close(out, torch.softmax(x, -1), rtol=2e-3, atol=2e-3)
    a, b, c = torch.randn(40, 30).half(), torch.randn(30, 130).half(), torch.empty(40, 130).half()
    run(product(40, 130, 30), a, b, c)
    torch.testing.assert_close(c, (a.float() @ b.float()).half())
    backwards = torch.empty(33, 64).half()
    run(copy(33, 64, source="2111 + -64*x0 + -1*x1"), x.flatten(), backwards)
    assert torch.equal(backwards.flatten(), x.flatten()[:2112].flip(0))
    assert min(ran) > 16


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ([range(0, 5), range(4, 8)], "two cores write one element of out"),
        ([range(0, 4), range(5, 8)], "not all of out is written"),
    ],
)
def test_shares_that_overlap_or_leave_gaps_are_seen(shares, message, monkeypatch):
    monkeypatch.setattr(Division, "shares", lambda self: [{"x0": rows, "x1": range(64)} for rows in shares])
    out = torch.zeros(8, 64).half()
    with pytest.raises(checking.DivisionError, match=message):
        checking.run_divided(Kernel(copy(8, 64)).bind(()), {"a0": torch.ones(8, 64).half(), "out": out})
    assert not out.any()


def test_an_unknown_check_is_refused():
    assert checking._asked_for(" division,") == {"division"}
    command = [sys.executable, "-c", "import spyre_backend.simulator"]
    done = subprocess.run(command, env={"SPYRE_CHECK": "divison"}, capture_output=True, text=True)
    assert done.returncode != 0
    assert "SPYRE_CHECK: no check divison; there is division" in done.stderr


def test_costs_are_bound_once():
    bound = Kernel(copy(8, 64)).bind(())
    assert isinstance(bound.cost, Cost)
    assert bound.cost is bound.cost
