"""`compile:NAME`, `device:MODULE` and the named adapters."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from conformance import observe
from conformance.backends import registry
from conformance.backends.protocol import BackendError

REGISTERS = """
from functools import partial
import torch
from torch._dynamo import register_backend

@register_backend(name="test_compiled_own")
def own(gm, example_inputs, options=None):
    own.options = options
    return gm.forward
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "registers_own_backend.py").write_text(REGISTERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "registers_own_backend"


def test_a_name_that_a_module_registers(module: str) -> None:
    backend = registry.find("compile:test_compiled_own", backend_import=module, backend_options={"level": 3})
    assert backend.availability()[0]
    backend.setup()
    x = torch.arange(4.0)
    torch.testing.assert_close(backend.compile(torch.sin, dynamic=False)(x), x.sin())
    import registers_own_backend

    assert registers_own_backend.own.options == {"level": 3}
    scope: dict = {"fn": torch.sin}
    exec(backend.imports, scope)
    torch.testing.assert_close(eval(backend.compile_source.format(dynamic=True), scope)(x), x.sin())


FACTORY = """
def make(scale=1):
    def backend(graph, example_inputs):
        return lambda *args: [out * scale for out in graph(*args)]
    return backend

double = make(2)
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "makes_own_backends.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("spec", "options", "scale"),
    [
        ("makes_own_backends:double", None, 2),
        ("makes_own_backends:make()", None, 1),
        ("makes_own_backends:make()", {"scale": 3}, 3),
    ],
)
@pytest.mark.usefixtures("factories")
def test_an_object_that_is_not_registered(spec: str, options: dict | None, scale: int) -> None:
    backend = registry.find(f"compile:{spec}", backend_options=options)
    assert backend.availability()[0]
    backend.setup()
    x = torch.arange(4.0)
    torch.testing.assert_close(backend.compile(torch.sin, dynamic=False)(x), x.sin() * scale)
    torch.compiler.reset()
    scope: dict = {"fn": torch.sin}
    exec(backend.imports, scope)
    torch.testing.assert_close(eval(backend.compile_source.format(dynamic=True), scope)(x), x.sin() * scale)


@pytest.mark.parametrize(
    ("spec", "options", "says"),
    [
        ("makes_own_backends:mak()", None, "makes_own_backends has no 'mak'; did you mean 'make'?"),
        ("makes_own_backends:make()", {"colour": 1}, r"make\(\) raises TypeError"),
        ("makes_own_backends:double", {"scale": 3}, "options go to a name or to a factory"),
        ("no_such_module_here:double", None, "cannot import no_such_module_here"),
        ("makes_own_backends:make(2)", None, r"compile:MODULE:FACTORY\(\) is right"),
    ],
)
@pytest.mark.usefixtures("factories")
def test_an_object_that_is_not_there(spec: str, options: dict | None, says: str) -> None:
    with pytest.raises(BackendError, match=says):
        registry.find(f"compile:{spec}", backend_options=options).setup()


def test_a_name_that_nobody_registers() -> None:
    with pytest.raises(BackendError, match="Dynamo knows no 'inducto'; did you mean 'inductor'"):
        registry.find("compile:inducto").setup()
    absent = registry.find("compile:x", backend_import=["no_such_module_here"])
    assert absent.availability() == (False, "not installed: no_such_module_here")
    with pytest.raises(BackendError, match="cannot import no_such_module_here"):
        absent.setup()


def test_a_device_that_no_module_registers() -> None:
    if observe.out_of_tree_device() is None:
        with pytest.raises(BackendError, match=r"importing json registers no device; say which by --device"):
            registry.find("device:json").setup()
    with pytest.raises(BackendError, match="no tensor can be made on 'nosuch'"):
        registry.find("device:nosuch", backend_import="json").setup()


@pytest.mark.parametrize("mode", ["inductor", "eager"])
def test_a_device_is_driven_through_inductor_or_eagerly(mode: str) -> None:
    backend = registry.find("device:cpu", backend_import="json", backend_options={"mode": mode})
    backend.setup()
    assert (backend.compile(torch.sin, dynamic=False) is torch.sin) == (mode == "eager")
    assert (backend.compile_source == "fn") == (mode == "eager")


def test_inductor_on_a_device_that_is_not_here() -> None:
    if not torch.cuda.is_available():
        backend = registry.find("inductor", device="cuda")
        assert backend.name == "inductor-cuda"
        with pytest.raises(BackendError, match="sees no cuda device here"):
            backend.setup()


def test_inductor_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert registry.find("inductor").availability() == (
        False,
        "no C++ compiler: g++, clang++, c++ not found (set CXX)",
    )


@pytest.mark.parametrize(("name", "package"), [("torch_spyre", "torch-spyre"), ("torch_sendnn", "torch_sendnn")])
def test_real_hardware_says_why_it_is_not_here(name: str, package: str) -> None:
    available, reason = registry.find(name).availability()
    if not available:
        assert package in reason
