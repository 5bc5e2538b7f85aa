"""Where an exception arose and whether it is a refusal: real exceptions of every part of the stack, and tables."""

from __future__ import annotations

from typing import Any

import pytest

from conformance import stages
from conformance.outcomes import Stage

pytest.importorskip("torch")

import torch
from torch._dynamo.backends.common import aot_autograd


def raised(fn: Any, *args: Any) -> BaseException:
    torch.compiler.reset()
    try:
        fn(*args)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


X = torch.arange(4.0)


def in_capture() -> BaseException:
    def broken(x: Any) -> Any:
        print(x)
        return x

    return raised(torch.compile(broken, backend="eager", fullgraph=True), X)


def in_capture_by_a_bad_shape() -> BaseException:
    return raised(torch.compile(lambda x: x @ torch.ones(7), backend="eager"), X)


def in_a_backend() -> BaseException:
    def backend(gm: Any, inputs: Any) -> Any:
        raise KeyError("no table")

    return raised(torch.compile(torch.sin, backend=backend), X)


def in_a_backend_after_aot(refuse: bool = False) -> BaseException:
    def compiler(gm: Any, inputs: Any) -> Any:
        raise NotImplementedError("sin") if refuse else KeyError("no table")

    return raised(torch.compile(torch.sin, backend=aot_autograd(fw_compiler=compiler)), X)


def in_a_decomposition() -> BaseException:
    def broken(x: Any) -> Any:
        raise KeyError("no rule")

    table = {torch.ops.aten.sin.default: broken}
    return raised(torch.compile(torch.sin, backend=aot_autograd(fw_compiler=lambda gm, _: gm, decompositions=table)), X)


def in_a_lazily_compiled_backward() -> BaseException:
    def backward(gm: Any, inputs: Any) -> Any:
        raise KeyError("no table")

    fn = torch.compile(
        torch.sin, backend=aot_autograd(fw_compiler=lambda gm, _: gm, bw_compiler=backward), dynamic=True
    )
    return raised(lambda: fn(X.clone().requires_grad_()).sum().backward())


def at_run() -> BaseException:
    def backend(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            raise RuntimeError("device lost")

        return run

    return raised(torch.compile(torch.sin, backend=backend), X)


def at_run_after_aot() -> BaseException:
    def compiler(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            raise RuntimeError("device lost")

        return run

    return raised(torch.compile(torch.sin, backend=aot_autograd(fw_compiler=compiler)), X)


def in_user_code() -> BaseException:
    return raised(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("make", "stage"),
    [
        (in_capture, Stage.CAPTURE),
        (in_capture_by_a_bad_shape, Stage.CAPTURE),
        (in_a_backend, Stage.LOWER),
        (in_a_backend_after_aot, Stage.LOWER),
        (in_a_decomposition, Stage.DECOMPOSE),
        (in_a_lazily_compiled_backward, Stage.LOWER),
        (at_run, Stage.RUN),
        (at_run_after_aot, Stage.RUN),
        (in_user_code, Stage.RUN),
    ],
)
def test_the_stage_of_real_exceptions(make: Any, stage: Stage) -> None:
    assert stages.stage_of(make()) is stage


def test_errors_of_upstream_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.codecache as codecache
    import torch._inductor.codegen.cpp as cpp
    import torch._inductor.graph as graph
    import torch._inductor.scheduler as scheduler

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("broken")

    options = {"fx_graph_cache": False}
    for target, name, stage in (
        (graph.GraphLowering, "call_function", Stage.LOWER),
        (cpp.CppScheduling, "codegen_node", Stage.CODEGEN),
        (scheduler.Scheduler, "fuse_nodes", Stage.LOWER),
        (codecache.CppCodeCache, "load_async", Stage.CODEGEN),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, fails)
            compiled = torch.compile(torch.sin, backend="inductor", options=options)
            assert stages.stage_of(raised(compiled, X)) is stage, name


@pytest.mark.parametrize(
    ("frames", "stage"),
    [
        ([("_inductor/codegen/cpp.py", "codegen")], Stage.CODEGEN),
        ([("_inductor/scheduler.py", "codegen"), ("_inductor/graph.py", "codegen")], Stage.CODEGEN),
        ([("_inductor/scheduler.py", "fuse_nodes"), ("_inductor/graph.py", "codegen")], Stage.LOWER),
        ([("_inductor/graph.py", "call_function"), ("_inductor/graph.py", "run")], Stage.LOWER),
        ([("_ops.py", "__call__"), ("_decomp/decompositions.py", "inner"), ("_functorch/x.py", "y")], Stage.DECOMPOSE),
        ([("_subclasses/fake_tensor.py", "d"), ("_functorch/aot_autograd.py", "y")], Stage.AUTOGRAD),
        ([("_inductor/compile_fx.py", "compile_fx_inner")], Stage.LOWER),
        ([("_inductor/compile_fx.py", "compile_fx")], Stage.AUTOGRAD),
        ([("_ops.py", "__call__")], None),
        ([], None),
    ],
)
def test_the_innermost_known_frame_names_the_stage(frames: list, stage: Stage | None) -> None:
    assert stages._innermost(frames) is stage


class Asked:
    def unsupported(self, error: BaseException) -> bool:
        return isinstance(error, KeyError)


@pytest.mark.parametrize(
    ("error", "backend", "refusal"),
    [
        (NotImplementedError("anything"), None, True),
        (RuntimeError("\"lu_cpu\" not implemented for 'Half'"), None, True),
        (RuntimeError("Could not run 'aten::svd' with arguments from the 'PrivateUse1' backend."), None, True),
        (RuntimeError("aten.sort is not supported"), None, True),
        (RuntimeError("Unsupported data type: float64"), None, True),
        (RuntimeError("failed to legalize operation 'torch.aten.fft' that was explicitly marked illegal"), None, True),
        (RuntimeError("this version does not support complex"), None, True),
        (RuntimeError("shape mismatch"), None, False),
        (KeyError("x"), None, False),
        (KeyError("x"), Asked(), True),
        (ValueError("x"), Asked(), False),
        (AssertionError(), None, False),
    ],
)
def test_what_is_a_refusal(error: BaseException, backend: Any, refusal: bool) -> None:
    assert stages.is_refusal(error, backend) is refusal


def while_handling_a_refusal() -> None:
    try:
        raise NotImplementedError
    except NotImplementedError:
        raise KeyError("a bug on the other path")  # noqa: B904


def test_a_wrapped_refusal_is_one_and_a_handled_one_is_not() -> None:
    assert stages.is_refusal(in_a_backend_after_aot(refuse=True))
    assert not stages.is_refusal(in_a_backend_after_aot())
    assert stages.is_refusal(in_capture())
    assert not stages.is_refusal(raised(while_handling_a_refusal))


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = KeyError("a"), KeyError("b")
    first.__cause__, second.__cause__ = second, first
    assert list(stages.chain(first)) == [first, second]
