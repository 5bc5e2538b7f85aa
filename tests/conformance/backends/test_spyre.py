"""The adapter: the suite's protocol without the suite."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from conformance.backends.spyre import SpyreBackend

pytestmark = pytest.mark.filterwarnings("ignore::spyre_backend.HostFallbackWarning")


@pytest.fixture
def backend() -> SpyreBackend:
    backend = SpyreBackend()
    backend.setup()
    backend.reset()
    return backend


def test_says_what_it_is(backend: SpyreBackend) -> None:
    available, reason = backend.availability()
    assert available, reason
    capabilities = backend.capabilities()
    assert capabilities["device"] == "spyre"
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in capabilities["dtypes"])
    assert set(capabilities["number_formats"]) == set(capabilities["accumulation"])
    assert eval(backend.compile_source.format(dynamic=False), {"torch": torch, "fn": torch.sin}) is not None


def test_says_that_a_compiler_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    available, reason = SpyreBackend().availability()
    assert available, "an earlier build may be there"
    assert "no C++ compiler: /nonexistent/c++ not found" in reason


def test_observes_kernels_lowerings_fallbacks_and_copies(backend: SpyreBackend) -> None:
    x = torch.randn(4, 8, device="spyre")
    backend.compile(torch.neg, dynamic=False)(x)  # the first compilation of a process makes constants on the device
    compiled = backend.compile(lambda t: (t.sin() + 1).sum(-1), dynamic=False)
    with backend.observe() as seen:
        got = compiled(x)
        moved = got.cpu()
    torch.testing.assert_close(moved, (x.cpu().sin() + 1).sum(-1))
    assert seen["kernels"] >= 1
    assert seen["fallbacks"] == {}
    assert {"aten::sin", "aten::add.Tensor", "aten::sum.dim_IntList"} <= set(seen["lowered"])
    assert seen["transfers"] == 1
    assert seen["bytes_moved"] >= x.nbytes
    assert seen["device_s"] > 0
    with backend.observe() as again:  # run without compiling: the same program, counted anew
        compiled(x)
    assert again["kernels"] == seen["kernels"]
    assert again["lowered"] == seen["lowered"]
    with backend.observe() as eager:
        torch.sin(x)
    assert (eager["kernels"], eager["fallbacks"], eager["lowered"]) == (0, {"aten::sin": 1}, {})


def test_observes_what_ran_before_an_error(backend: SpyreBackend) -> None:
    x = torch.ones(2, device="spyre")
    with pytest.raises(RuntimeError, match="shape"), backend.observe() as seen:
        x.sin().view(3)
    assert seen["fallbacks"] == {"aten::sin": 1}


def test_tells_refusals_from_bugs(backend: SpyreBackend) -> None:
    with pytest.raises(NotImplementedError) as refusal:
        torch.eye(2, device="spyre").to_sparse()
    assert backend.unsupported(refusal.value)
    wrapped = RuntimeError("while compiling")
    wrapped.__cause__ = refusal.value
    assert backend.unsupported(wrapped)
    assert not backend.unsupported(KeyError("x"))


_SPECIALISED = """
import torch
from conformance.backends.spyre import SpyreBackend

backend = SpyreBackend()
backend.setup()
for bound in (2.0, 3.0, 5.0):
    x = torch.ones(4, device="spyre", requires_grad=True)
    y = backend.compile(torch.clamp, dynamic=True)(x, min=bound)
    y.sum().backward()
    print(y.max().item(), x.grad.sum().item())
    backend.reset()
"""


def test_no_graph_is_taken_that_was_specialised_for_an_earlier_sample(backend: SpyreBackend, tmp_path) -> None:
    environment = {**os.environ, **backend.environment(), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SPECIALISED],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == ["2.0 0.0", "3.0 0.0", "5.0 0.0"], done.stderr
