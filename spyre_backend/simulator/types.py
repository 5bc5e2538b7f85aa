"""Between the program's dtypes and literals and torch's."""

import functools

import torch

from spyre_backend import numerics
from spyre_backend.program.dtypes import DType

_TORCH = {dtype: getattr(torch, dtype.value) for dtype in DType}


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of the same name, in which memory is."""
    return _TORCH[dtype]


def value_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype in which values are held: that of the same name, but for DL16, whose range float16 lacks."""
    return torch.float32 if dtype is DType.FLOAT16 and numerics.is_dl16() else _TORCH[dtype]


@functools.lru_cache(maxsize=4096)
def constant(text: str) -> int | float | bool:
    """The number that a program literal spells."""
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text)
    except ValueError:
        return float(text)
