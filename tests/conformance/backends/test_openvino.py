"""What the adapter makes of OpenVINO's log; and OpenVINO itself, where it is installed."""

from __future__ import annotations

import importlib.util
import logging

import pytest

from conformance.backends.openvino import LOGGER, OpenVINOBackend, _Heard

BEFORE = """Graph module before partitioning
def forward(self, x):
    a = torch.ops.aten.sin.default(x)
    b = torch.ops.aten.svd.default(a)
"""
AFTER = """Graph module after partitioning
def forward(self, x):
    fused_0 = self.fused_0(x)
    b = torch.ops.aten.svd.default(a)
"""
RAN = "OpenVINO graph execution successful"
FAILED = "OpenVINO execution failed with torch.bfloat16. Falling back to native PyTorch execution."
REFUSED = "Failed in OpenVINO execution: \nCheck 'is_ok' failed\n"


@pytest.mark.parametrize(
    ("messages", "kernels", "fallbacks", "lowered"),
    [
        ([], 0, {}, {}),
        ([BEFORE, AFTER, RAN], 1, {"aten::svd.default": 1}, {"aten::sin.default": 1}),
        ([BEFORE, AFTER, RAN, RAN], 2, {"aten::svd.default": 1}, {"aten::sin.default": 1}),
        ([BEFORE, AFTER, FAILED], 0, {"aten::svd.default": 1, "aten::sin.default": 1}, {}),
        ([REFUSED], 0, {"openvino::graph": 1}, {}),
    ],
)
def test_what_ran_is_read_from_the_log(messages: list[str], kernels: int, fallbacks: dict, lowered: dict) -> None:
    heard = _Heard()
    for message in messages:
        heard.emit(logging.LogRecord(LOGGER, logging.DEBUG, "", 0, message, (), None))
    seen = heard.observation()
    assert (seen["kernels"], seen["fallbacks"], seen["lowered"]) == (kernels, fallbacks, lowered)
    assert bool(seen["notes"]) == (FAILED in messages or REFUSED in messages)


def test_options_are_merged_and_the_precision_is_declared() -> None:
    usual = OpenVINOBackend()
    assert usual.options == {"testing": True, "config": {"INFERENCE_PRECISION_HINT": "f32"}}
    assert usual.capabilities()["number_formats"]["float32"] == "fp32"
    assert usual.capabilities()["backward"] is False
    half = OpenVINOBackend({"aot_autograd": True, "config": {"INFERENCE_PRECISION_HINT": "bf16"}})
    assert half.capabilities()["number_formats"]["float32"] == "bf16"
    assert half.capabilities()["backward"] is True


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="the extra openvino is not installed")
def test_a_product_runs_in_openvino() -> None:
    import torch

    from conformance import observe

    backend = OpenVINOBackend()
    backend.setup()
    x = torch.randn(8, 8)
    with observe.observe(backend) as seen:
        torch.testing.assert_close(backend.compile(torch.mm, dynamic=False)(x, x), x @ x, rtol=1e-4, atol=1e-4)
    assert seen.kernels == 1
    assert seen.lowered == {"aten::mm.default": 1}
    assert seen.fallbacks == {}
