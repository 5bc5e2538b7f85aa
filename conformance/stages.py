"""Where an exception of a compiled callable arose, and whether it is a clear refusal. From its type and traceback.

Pure: the names of upstream's exception classes and source files are data here, nothing of torch is imported.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from conformance.outcomes import Stage

COMPILE_FRAMES: tuple[tuple[str, str, Stage], ...] = (
    # file (prefix, from the torch package on), function (regular expression, "" for any), stage
    ("_inductor/codegen/", "", Stage.CODEGEN),
    ("_inductor/codecache.py", "", Stage.CODEGEN),
    ("_inductor/cpp_builder.py", "", Stage.CODEGEN),
    ("_inductor/async_compile.py", "", Stage.CODEGEN),
    ("_inductor/runtime/", "", Stage.CODEGEN),
    ("_inductor/scheduler.py", "_?codegen.*", Stage.CODEGEN),
    ("_inductor/graph.py", "codegen.*|compile_to_.*|_compile_to_.*", Stage.CODEGEN),
    ("_inductor/decomposition.py", "", Stage.DECOMPOSE),
    (
        "_inductor/compile_fx.py",
        "compile_fx_inner|_compile_fx_inner|fx_codegen_and_compile|codegen_and_compile",
        Stage.LOWER,
    ),
    ("_inductor/compile_fx.py", "", Stage.AUTOGRAD),
    ("_inductor/", "", Stage.LOWER),
    ("fx/experimental/proxy_tensor.py", "maybe_handle_decomp", Stage.DECOMPOSE),
    ("_decomp/", "", Stage.DECOMPOSE),
    ("_refs/", "", Stage.DECOMPOSE),
    ("_prims/", "", Stage.DECOMPOSE),
    ("_prims_common/", "", Stage.DECOMPOSE),
    ("_functorch/", "", Stage.AUTOGRAD),
    ("_dynamo/backends/", "", Stage.LOWER),
    ("_dynamo/output_graph.py", "call_user_compiler|_call_user_compiler", Stage.LOWER),
    ("_dynamo/", "", Stage.CAPTURE),
)
"""Innermost frame first, the first row that matches names the stage."""

COMPILING = re.compile(
    r"_inductor/(compile_fx|graph|scheduler)\.py:|_dynamo/(output_graph|convert_frame|symbolic_convert)\.py:"
    r"|_dynamo/backends/common\.py:.*bw_compiler|_functorch/aot_autograd\.py:(create_aot|_create_aot|aot_module)"
    r"|_functorch/_aot_autograd/(graph_compile|graph_capture|jit_compile_runtime_wrappers)\.py:"
)
"""A traceback that passes through one of these was compiling; any other was running."""


GLUE = frozenset({"_dynamo/eval_frame.py"})
"""Files whose frames say nothing: they are on every stack."""


def stage_of(error: BaseException) -> Stage:
    """Where an exception that came out of a compiled callable arose, from its type and its traceback."""
    compiled = _first(error, "BackendCompilerFailed")
    if compiled is None and _first(error, "TorchDynamoException", "FailOnRecompileLimitHit") is not None:
        return Stage.CAPTURE
    frames, called_out = _frames(compiled or error)
    if compiled is None and not any(COMPILING.match(f"{file}:{function}") for file, function in frames):
        return Stage.RUN
    stage = _innermost(frames)
    if stage is None or (compiled is not None and stage is Stage.CAPTURE):
        return Stage.LOWER
    # AOTAutograd or Dynamo called a compiler that is not torch's, and that is where it arose.
    return Stage.LOWER if called_out and stage in (Stage.AUTOGRAD, Stage.CAPTURE) else stage


def _is(error: BaseException, *names: str) -> bool:
    """Whether a class of that name is among the exception's types: names are stable where modules are not."""
    return any(kind.__name__ in names for kind in type(error).__mro__)


def _first(error: BaseException, *names: str) -> BaseException | None:
    return next((item for item in chain(error) if _is(item, *names)), None)


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, what it wraps and what it was raised from, each once, outermost first.

    Not what was being handled when it arose: a refusal that somebody handled is not the reason of a later bug.
    """
    queue: list[BaseException | None] = [error]
    done: set[int] = set()
    while queue:
        item = queue.pop(0)
        if item is None or id(item) in done:
            continue
        done.add(id(item))
        yield item
        queue += [getattr(item, "inner_exception", None), item.__cause__]


def _frames(error: BaseException) -> tuple[list[tuple[str, str]], bool]:
    """`(file from the torch package on, function)` of every frame within torch, innermost first.

    And whether the innermost frame of all is not torch's.
    """
    codes = [code for item in chain(error) for code in _codes(item)]
    inside = [(file, code.co_name) for code in reversed(codes) if (file := _inside_torch(code))]
    return [frame for frame in inside if frame[0] not in GLUE], bool(codes) and not _inside_torch(codes[-1])


def _codes(error: BaseException) -> list[CodeType]:
    return [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]


def _inside_torch(code: CodeType) -> str:
    return code.co_filename.replace("\\", "/").rpartition("/torch/")[2] if "/torch/" in code.co_filename else ""


def _innermost(frames: list[tuple[str, str]]) -> Stage | None:
    for file, function in frames:
        for prefix, pattern, stage in COMPILE_FRAMES:
            if file.startswith(prefix) and (not pattern or re.fullmatch(pattern, function)):
                return stage
    return None


REFUSALS = re.compile(
    r"not implemented for|not (yet |currently )?(implemented|supported)|unsupported|does(n't| not) support"
    r"|Could not run '[^']+' with arguments from the|missing lowering|failed to legalize operation|no (kernel|lowering|"
    r"conversion rule)\b",
    re.IGNORECASE,
)
"""Messages by which upstream and third-party compilers say that they lack something, rather than break."""

REFUSAL_TYPES = ("NotImplementedError", "Unsupported", "UncapturedHigherOrderOpError")
"""Names of exception classes that mean the same; the last two are Dynamo's."""


def is_refusal(error: BaseException, backend: Any = None) -> bool:
    """Whether an exception is a clear refusal (`unsupported`): the backend says so, or its type or message does."""
    judge: Callable[[BaseException], bool] | None = getattr(backend, "unsupported", None)
    if judge is not None and judge(error):
        return True
    return any(_is(item, *REFUSAL_TYPES) or REFUSALS.search(str(item)) for item in chain(error))
