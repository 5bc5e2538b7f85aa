"""Products by group: on the device, forwards and backwards, whatever the groups are."""

from __future__ import annotations

import pytest
import torch

from tests.spyre_backend.on_device import to_device

# registers its fallback
pytest.importorskip("transformers.integrations.moe")

ENDS = {
    "one each": [2, 4, 6, 8],
    "some are empty": [0, 5, 5, 8],
    "rows of nobody": [1, 2, 2, 6],
    "all in one": [0, 0, 0, 8],
}


def _grouped(x: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.ops.transformers.grouped_mm_fallback(x, matrices, ends)


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_times_the_matrix_of_their_group(on_device, ends: list[int], dynamic: bool) -> None:
    x, matrices = torch.randn(8, 6), torch.randn(4, 5, 6).transpose(1, 2)
    on_device.native(_grouped, x, matrices, torch.tensor(ends, dtype=torch.int32), dynamic=dynamic)


def test_gradients(on_device) -> None:
    operands = torch.randn(8, 6, requires_grad=True), torch.randn(4, 6, 5, requires_grad=True)
    device, ends = to_device(operands), torch.tensor([0, 3, 3, 8], dtype=torch.int32)
    expected = torch.autograd.grad(_grouped(*operands, ends).square().sum(), operands)
    ran = on_device.compile(_grouped)(*device, ends.to("spyre"))
    found = torch.autograd.grad(ran.result.square().sum(), device)
    torch.testing.assert_close([each.cpu() for each in found], list(expected))
    assert ran.extern == {}
