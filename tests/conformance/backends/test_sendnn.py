"""The adapter of the reconstructed sendnn, on the simulated device."""

from __future__ import annotations

import pytest
import torch

from conformance.backends import sendnn as adapter
from conformance.backends.protocol import BackendError
from conformance.backends.sendnn import SendnnBackend


@pytest.fixture
def backend() -> SendnnBackend:
    backend = SendnnBackend()
    backend.setup()
    yield backend
    backend.reset()


def test_says_that_it_is_a_reconstruction(backend: SendnnBackend) -> None:
    told = backend.capabilities()
    assert told["notes"].startswith("a reconstruction of sendnn, not IBM's code")
    assert (told["backward"], told["device"]) == (False, "spyre")
    assert "float64" not in told["dtypes"]
    available, why = backend.availability()
    assert available
    assert why.startswith("a reconstruction")


def test_leaves_the_name_to_ibms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "importable", lambda name: name == "torch_sendnn")
    assert SendnnBackend().availability() == (
        False,
        "torch_sendnn is installed, to which the name belongs: use the backend torch_sendnn",
    )


def test_observes_programs_and_operators(backend: SendnnBackend) -> None:
    x = torch.ones(4, 64, device="spyre")
    with torch.no_grad(), backend.observe() as seen:
        backend.compile(lambda x: torch.softmax(x * 2, -1), dynamic=False)(x)
    assert seen["kernels"] == 1
    assert seen["lowered"] == {"aten::mul.Tensor": 1, "aten::_softmax": 1}
    assert seen["fallbacks"] == {}
    assert seen["device_s"] > 0


def test_a_refusal_is_told_from_a_bug(backend: SendnnBackend) -> None:
    with pytest.raises(Exception, match="there is no lowering for it") as refused, torch.no_grad():
        backend.compile(torch.linalg.cholesky, dynamic=False)(torch.eye(3, device="spyre"))
    assert backend.unsupported(refused.value)


def test_options_are_the_compilers_but_for_numerics() -> None:
    backend = SendnnBackend({"host": True})
    backend.setup()
    assert (
        backend.compile_source == "torch.compile(fn, backend=\"sendnn\", dynamic={dynamic}, options={{'host': True}})"
    )
    with torch.no_grad(), backend.observe() as seen:
        backend.compile(lambda x: torch.polygamma(1, x) * 2, dynamic=False)(torch.ones(3, device="spyre"))
    assert seen["notes"]["external"] == "aten::polygamma: 1"
    assert seen["fallbacks"] == {"aten::polygamma": 1}
    with pytest.raises(BackendError, match="there are ieee, dl16"):
        SendnnBackend({"numerics": "dl17"})
