"""What TORCH_LOGS shows of the backend, in processes of their own: the variable is read when torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch
import spyre_backend.sendnn
spyre_backend.sendnn.register()
x = torch.ones(70, 200, dtype=torch.float16, device="spyre")
torch.compile(lambda x: torch.softmax(x, -1), backend="{backend}")(x)
"""


def shown(settings: str, backend: str) -> str:
    environment = os.environ | {"TORCH_LOGS": settings, "TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT.format(backend=backend)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stderr


@pytest.mark.parametrize(
    ("settings", "present", "absent", "backend"),
    [
        ("+spyre_backend.inductor", "reduce.max", "above the roofline", "inductor"),
        ("+spyre_backend.sendnn", "reduce.max", "above the roofline", "sendnn"),
        (
            "spyre_backend.simulator",
            "above the roofline, bound by memory; reads 28032 and writes 28032",
            "reduce.max",
            "inductor",
        ),
        ("spyre_backend.inductor", "", "reduce.max", "inductor"),
    ],
)
def test_programs_and_their_cost_are_shown_on_demand(settings: str, present: str, absent: str, backend: str) -> None:
    text = shown(settings, backend)
    assert present in text
    assert absent not in text
