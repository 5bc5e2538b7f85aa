"""What sendnn writes in other operators, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.spyre_backend.on_device import OnDevice

X, IMAGE, VOLUME = torch.randn(4, 6, 16), torch.randn(2, 3, 9, 7), torch.randn(1, 2, 5, 6, 4)
SMALL = torch.tensor([float("-inf"), -2.0, -0.5, 0.0, 0.3, 1.0, float("inf")])

SAME: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...]]] = {
    "activations": (lambda x: (F.celu(x, 0.7), F.glu(x), F.hardshrink(x), F.softshrink(x, 0.2), F.logsigmoid(x)), (X,)),
    "ends": (lambda x: (torch.isposinf(x), torch.isneginf(x), torch.logaddexp(x, x), torch.logaddexp(x, -x)), (SMALL,)),
    "sinc": (lambda x: torch.sinc(x[1:-1]), (SMALL,)),
    "isin": (lambda x: torch.isin(x, x[2:4]), (SMALL,)),
    "moments": (lambda x: (*torch.std_mean(x, 1), *torch.aminmax(x, dim=0), torch.dist(x, x + 1)), (X,)),
    "products": (
        lambda a, b, v: (torch.addmv(v, a, b, beta=2), torch.addr(a, v, b, alpha=0.5), torch.trace(a)),
        (torch.randn(4, 6), torch.randn(6), torch.randn(4)),
    ),
    "addbmm": (lambda x: torch.addbmm(x[0, :, :6], x[:, :, :6], x[:, :, 6:12]), (X,)),
    "cross": (lambda x: torch.linalg.cross(x[..., :3], x[..., 3:6]), (X,)),
    "cdist": (lambda x: torch.cdist(x, x.flip(1) * 2), (X,)),
    "turned": (lambda x: [torch.rot90(x, k, (0, 2)) for k in range(4)], (X,)),
    "diagonals": (lambda x: (torch.diag_embed(x[0], 2), torch.diag_embed(x[0], -1, 0, 2)), (X,)),
    "take": (lambda x, i: torch.take(x, i), (X, torch.tensor([[3, 100], [0, -1]]))),
    "masked scatter": (lambda x, m: x.masked_scatter(m > 0, x.flip(0) + 1), (X, X[:, :, :1].flip(1))),
    "pads": (lambda x: (F.pad(x, (2, 1, 3, 0), "reflect"), F.pad(x, (2, 1, 3, 4), "replicate")), (IMAGE,)),
    "averages": (
        lambda x: (
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True, count_include_pad=False),
            F.avg_pool2d(x, 2, divisor_override=3),
            F.adaptive_avg_pool2d(x, (4, 3)),
        ),
        (IMAGE,),
    ),
    "averages of volumes": (lambda x: (F.avg_pool3d(x, 2, 1), F.adaptive_avg_pool3d(x, 2)), (VOLUME,)),
    "largest": (
        lambda x: (
            F.max_pool2d(x, 2),
            *F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True),
            *F.max_pool2d(x, 2, 1, 1, dilation=2, return_indices=True),
        ),
        (IMAGE,),
    ),
    "largest of volumes": (lambda x: F.max_pool3d(x, 2, return_indices=True), (VOLUME,)),
    "columns": (lambda x: F.unfold(x, (3, 2), dilation=2, padding=1, stride=2), (IMAGE,)),
    "nearest": (
        lambda x: [F.interpolate(x, scale_factor=s, mode=m) for s in (2, 0.7) for m in ("nearest", "nearest-exact")],
        (IMAGE,),
    ),
    "linear": (
        lambda x: [
            F.interpolate(x, **size, mode="bilinear", align_corners=align)
            for size in ({"size": (13, 5)}, {"scale_factor": 1.6})
            for align in (True, False)
        ],
        (IMAGE,),
    ),
    "cubic": (
        lambda x: [F.interpolate(x, size=(13, 5), mode="bicubic", align_corners=align) for align in (True, False)],
        (IMAGE,),
    ),
    "losses": (
        lambda x, y: (
            F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
            F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=y[0].exp()),
            F.soft_margin_loss(x, y.sign()),
            F.mse_loss(x, y),
            F.smooth_l1_loss(x, y, beta=0.5),
            F.huber_loss(x, y, delta=0.5),
        ),
        (X, X.flip(0) + 1),
    ),
    "classes": (
        lambda x, w, i: [F.cross_entropy(x, i, weight=w, reduction=r, ignore_index=2) for r in ("none", "mean", "sum")],
        (torch.randn(6, 4), torch.rand(4), torch.tensor([0, 3, 2, 1, 1, 2])),
    ),
    "transposed convolution": (
        lambda x, w: (
            F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
            F.conv_transpose2d(x, w, dilation=2),
        ),
        (IMAGE, torch.randn(3, 4, 3, 2)),
    ),
    "convolution in groups": (
        lambda x, w, v: (F.conv2d(x, w, groups=2, stride=2), F.conv_transpose2d(x, v, groups=2, stride=(1, 2))),
        (torch.randn(2, 4, 9, 7), torch.randn(6, 2, 3, 2), torch.randn(4, 3, 2, 2)),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_as_pytorch(on_device: OnDevice, name: str) -> None:
    function, operands = SAME[name]
    assert on_device.check(function, *operands, atol=2e-5, rtol=2e-5).extern == {}
