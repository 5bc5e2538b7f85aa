"""Dtypes of values while a kernel is recorded, following Inductor's rule that half precision computes in float32.

In DL16 float16 computes as it is: so does the device, whose public compiler turns that rule off
(`codegen_upcast_to_fp32` in torch-spyre's `_inductor/__init__.py`). What a program says is float32 then is float32.
"""

import functools

import torch

from spyre_backend import numerics
from spyre_backend.program import DType, SpyreUnsupported

_COMPUTE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


@functools.cache
def program_dtype(dtype: torch.dtype) -> DType:
    """The program's dtype of the same name. Raises SpyreUnsupported for the others (complex, quantised)."""
    try:
        return DType(str(dtype).removeprefix("torch."))
    except ValueError:
        raise SpyreUnsupported(f"{dtype} has no counterpart on the device") from None


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values that live in memory as `dtype` are computed."""
    if dtype == torch.float16 and numerics.is_dl16():
        return dtype
    return _COMPUTE.get(dtype, dtype)


def literal(value: object, dtype: torch.dtype) -> str:
    """`value` as the text of a program constant of `dtype`."""
    if dtype == torch.bool:
        return str(bool(value))
    if dtype.is_floating_point:
        return repr(float(value))  # type: ignore[arg-type]
    return repr(int(value))  # type: ignore[call-overload]
