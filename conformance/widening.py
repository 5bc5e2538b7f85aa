"""Run code that asks for float32 by name as if it had asked for float64.

Models compute norms, softmax and rotary embeddings in float32 whatever they are given. In the run that is to be exact,
that would round; what asks for a dtype at least as fine as the case's own gets the wide one instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def widened_dtype(dtype: torch.dtype, wide: torch.dtype, narrow: torch.dtype) -> torch.dtype:
    """What stands for `dtype` in a run in `wide`: dtypes at least as fine as `narrow` change."""
    fine = not (narrow.is_floating_point or narrow.is_complex) or (
        (dtype.is_floating_point or dtype.is_complex) and torch.finfo(dtype).eps <= torch.finfo(narrow).eps
    )
    if dtype.is_floating_point and fine:
        return wide
    return wide.to_complex() if dtype.is_complex and fine else dtype


class widening(TorchFunctionMode):
    """Within it, PyTorch functions that are given a dtype at least as fine as `narrow` get `wide`."""

    def __init__(self, wide: torch.dtype, narrow: torch.dtype) -> None:
        super().__init__()
        self.wide, self.narrow = wide, narrow

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.float:
            return args[0].to(self._dtype(torch.float32))
        args = [self._dtype(arg) for arg in args]
        return func(*args, **{name: self._dtype(value) for name, value in (kwargs or {}).items()})

    def _dtype(self, x: Any) -> Any:
        return widened_dtype(x, self.wide, self.narrow) if isinstance(x, torch.dtype) else x
