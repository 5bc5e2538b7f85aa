"""The private torch symbols that the op sweep uses, each with the reason. Nothing else here names one.

Importing this module imports torch and its operator database (about 4 s).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

# Knows, for all devices, which operands may be on the CPU beside others that are not.
from torch._subclasses.fake_tensor import FakeTensorMode

# OpInfo is the only machine-readable list of operators with valid inputs for each dtype. It ships in the wheel,
# and upstream's own Inductor tests sweep it; there is no public equivalent.
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    ReductionOpInfo,
    SampleInput,
    UnaryUfuncInfo,
)

# How Dynamo and OpInfo flatten arguments; the public replacement (`torch.utils.pytree`) is not in torch 2.13.
from torch.utils import _pytree as pytree

__all__ = [
    "OP_DB_EXPRESSION",
    "OpInfo",
    "SampleInput",
    "argument_names",
    "aten_name",
    "core_overloads",
    "domain",
    "excludes_zero",
    "family",
    "is_cuda_jiterator",
    "is_overload",
    "mixes",
    "op_infos",
    "overload_names",
    "pytree",
]

OP_DB_EXPRESSION = '__import__("torch.testing._internal.common_methods_invocations", fromlist=["op_db"]).op_db'
"""Source of the database for a repro script, where an op cannot be named without it."""


@functools.cache
def op_infos() -> dict[str, OpInfo]:
    """Every OpInfo of the installed torch by subject: `name`, or `name.variant`. Database order, which is stable.

    Raises `RuntimeError` if two entries have one name: case ids would not be unique.
    """
    found: dict[str, OpInfo] = {}
    for info in op_db:
        subject = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
        if subject in found:
            raise RuntimeError(f"two OpInfos of torch {torch.__version__} are called {subject!r}")
        found[subject] = info
    return found


def is_cuda_jiterator(fn: Callable[..., Any]) -> bool:
    """Whether `fn` is compiled at run time by CUDA's jiterator: the database claims CPU dtypes for it in error."""
    return type(fn).__module__ == "torch.cuda.jiterator"


def is_overload(fn: Callable[..., Any]) -> bool:
    """Whether `fn` is `torch.ops.…`, a packet or one overload: their classes have no public name."""
    return isinstance(fn, torch._ops.OpOverload | torch._ops.OpOverloadPacket)


_FAMILIES = {UnaryUfuncInfo: "unary", BinaryUfuncInfo: "binary", ReductionOpInfo: "reduction"}


def mixes(fn: Callable[..., Any], args: Sequence[Any], on_cpu: Sequence[int]) -> bool:
    """Whether PyTorch takes a call whose tensors are on another device, but for those at the positions `on_cpu`."""
    if not on_cpu:
        return True
    with FakeTensorMode():
        made, position = [], 0
        for arg in args:
            if isinstance(arg, torch.Tensor):
                device = "cpu" if position in on_cpu else "meta"
                made.append(torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device=device))
                position += 1
            else:
                made.append(arg)
        try:
            fn(*made)
        except RuntimeError:
            return False
        return True


def family(info: OpInfo) -> str | None:
    """`unary`, `binary` or `reduction`: the kinds of op that take tensors of any shape. None for all others."""
    return next((name for kind, name in _FAMILIES.items() if isinstance(info, kind)), None)


def aten_name(info: OpInfo) -> str:
    """The operator that the entry says it dispatches to: `softmax`, `gelu` for `nn.functional.gelu`."""
    return str(getattr(info, "aten_name", "") or info.name)


def domain(info: OpInfo, *, first: bool) -> tuple[float | None, float | None]:
    """Lowest and highest value that the op takes; of a binary op that its first argument takes, or the second."""
    found = getattr(info, "domain", None)
    if found is None:
        given = getattr(info, "lhs_make_tensor_kwargs" if first else "rhs_make_tensor_kwargs", None) or {}
        found = given.get("low"), given.get("high")
    low, high = found
    return low, high


def excludes_zero(info: OpInfo) -> bool:
    """Whether the second argument of a binary op must not be zero."""
    return bool((getattr(info, "rhs_make_tensor_kwargs", None) or {}).get("exclude_zero"))


@functools.cache
def argument_names(op: str) -> tuple[str, ...]:
    """Names of the arguments of an overload (`aten.addmm.default`), in order; those by keyword alone come last.

    Raises `ValueError` where the installed torch does not have it.
    """
    found: Any = torch.ops
    for name in op.split("."):
        found = getattr(found, name, None)
    if not is_overload(found):
        raise ValueError(f"torch {torch.__version__} has no {op}")
    return tuple(
        argument.name for argument in found._schema.arguments
    )  # private: an overload's schema has no other way


@functools.cache
def overload_names() -> tuple[str, ...]:
    """Every ATen overload that the dispatcher knows, as `aten::add.Tensor`, sorted. The default overload has no
    suffix: `aten::relu`. There is no public list of registered operators."""
    return tuple(sorted(name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")))


@functools.cache
def core_overloads() -> frozenset[str]:
    """The overloads of `overload_names` that upstream tags as core ATen (`torch.Tag.core`), the set that
    decompositions aim at. Looked up in `torch.ops`; an overload that Python cannot reach (for scripting only)
    is not core."""
    return frozenset(name for name in overload_names() if torch.Tag.core in _tags(name))


def _tags(name: str) -> Sequence[torch.Tag]:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    return getattr(found, "tags", ())
