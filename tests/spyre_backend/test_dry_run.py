"""A dry run counts and costs what a run does, with no memory behind the tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spyre_backend
from spyre_backend.device import clock
from spyre_backend.simulator import observe


class Attention(nn.Module):
    """Enough of a language model to need products, softmax and a norm."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width, dtype=torch.float16)
        self.qkv = nn.Linear(width, 3 * width, bias=False, dtype=torch.float16)
        self.out = nn.Linear(width, 100, dtype=torch.float16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def called(width: int = 64, length: int = 40) -> None:
    with torch.device("spyre"):
        model, x = Attention(width), torch.zeros(2, length, width, dtype=torch.float16)
    with torch.no_grad():
        torch.compile(model)(x)


def test_a_dry_run_costs_what_a_run_does() -> None:
    start = clock.now()
    with observe() as ran:
        called()
    took = clock.now() - start
    torch._dynamo.reset()
    with spyre_backend.dry_run() as found:
        called()
    assert clock.now() == pytest.approx(start + took)  # no time passes in it
    assert found.launches == ran.launches > 3
    assert found.programs == len({digest for _, digest in ran.programs})
    assert found.seconds == pytest.approx(took, rel=1e-3)
    assert found.roofline_s < found.seconds
    kernels = found.kernels()
    assert sum(each.times for each in kernels) == found.launches
    assert sum(each.seconds for each in kernels) == pytest.approx(found.seconds)
    assert [each.lost_s for each in kernels] == sorted((each.lost_s for each in kernels), reverse=True)
    assert not found.on_host()
    by_cause = found.lost_by_cause()
    assert sum(by_cause.values()) == pytest.approx(found.seconds - found.roofline_s)
    assert list(by_cause.values()) == sorted(by_cause.values(), reverse=True)


def test_what_does_not_fit_this_machine_is_costed() -> None:
    with spyre_backend.dry_run() as found:
        with torch.device("spyre"):
            weight = torch.empty(1 << 20, 1 << 20, dtype=torch.float16)  # 2 TB
            x = torch.empty(1, 1 << 20, dtype=torch.float16)
        torch.compile(torch.matmul)(x, weight)
    assert found.seconds == pytest.approx((2 << 40) / 150e9, rel=0.01)
    assert found.kernels()[0].cost.division.cores == 32


def test_what_is_left_to_the_host_is_named() -> None:
    with spyre_backend.dry_run() as found:
        x = torch.empty(8, 8, device="spyre")
        compiled = torch.compile(lambda x: torch.linalg.inv(x) + 1)
        compiled(x)
        compiled(x)
    assert found.on_host()["aten::linalg_inv_ex.default"] == 2
    assert found.launches == 2


def test_a_launch_outside_of_it_runs() -> None:
    with spyre_backend.dry_run():
        pass
    x = torch.ones(3, device="spyre")
    assert torch.compile(lambda x: x + 1)(x).tolist() == [2, 2, 2]
