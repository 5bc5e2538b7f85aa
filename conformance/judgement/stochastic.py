"""Arithmetic that rounds at random: how far a result is off because every operation on the way to it rounds.

A result whose terms cancel is exact in float64 whatever its inputs are, so that moving the inputs does not tell how
much of it a narrower format loses. Monte Carlo arithmetic does (D. S. Parker, "Monte Carlo Arithmetic", report
CSD-970002, UCLA, 1997; the tools CADNA and Verificarlo): each operation is computed in float64 and its result rounded
to one of the two neighbours in the narrower format, up with a probability that grows with the distance from the lower
one. What can be represented stays as it is, so that data moves, selections, comparisons and small whole numbers are
exact as on a device, and only what really rounds is off. Errors of several runs are then draws from the distribution of
the error that the same operations make on a device, where each rounds in a way of its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from conformance.numerics import round_randomly

_KERNELS_OF_SEVERAL_STEPS = (
    # softmax and normalisation
    "_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "_safe_softmax",
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
    "native_batch_norm", "native_batch_norm_backward", "batch_norm_backward", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "_native_batch_norm_legit_functional", "_fused_rms_norm",
    "_fused_rms_norm_backward", "_weight_norm_interface",
    # products with a sum
    "addcmul", "addcdiv", "lerp", "addr", "baddbmm",
    # reductions
    "var", "var_mean", "std", "std_mean", "logsumexp", "linalg_vector_norm", "norm", "renorm", "dist",
    "_euclidean_dist", "linalg_cross",
    # functions of one number, and what their gradients are
    "gelu", "gelu_backward", "silu", "silu_backward", "mish", "mish_backward", "softplus", "softplus_backward",
    "log_sigmoid_forward", "log_sigmoid_backward", "elu", "elu_backward", "celu", "glu", "glu_backward",
    "tanh_backward", "sigmoid_backward", "hardsigmoid", "hardsigmoid_backward", "hardswish", "hardswish_backward",
    "logit", "logit_backward", "sinc", "xlogy", "logaddexp", "logaddexp2", "mvlgamma",
    # losses
    "binary_cross_entropy", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits", "mse_loss",
    "mse_loss_backward", "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss", "huber_loss_backward",
    "soft_margin_loss", "soft_margin_loss_backward",
    # interpolation
    "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d", "grid_sampler_2d",
)  # fmt: skip
"""ATen ops that are one kernel on the CPU and round several times within it; PyTorch has them in single steps as well,
which is what a compiler runs."""

_SUMS = frozenset({
    "sum", "nansum", "mean", "mm", "bmm", "addmm", "addmv", "addbmm", "baddbmm", "mv", "dot", "vdot",
    "convolution", "convolution_backward", "cumsum", "cumprod", "prod", "logcumsumexp", "linalg_vector_norm",
    "norm", "index_add", "index_add_", "scatter_add", "scatter_add_", "embedding_dense_backward", "avg_pool2d",
    "avg_pool2d_backward", "avg_pool3d", "avg_pool3d_backward", "_adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d", "_adaptive_avg_pool3d_backward", "_fft_r2c",
    "_fft_c2r", "_fft_c2c", "_cdist_forward", "_cdist_backward", "_pdist_forward", "_pdist_backward",
    "_trilinear", "grid_sampler_3d", "col2im",
})  # fmt: skip
"""ATen ops that round while they sum or multiply up: their operands are moved by up to half a unit of the accumulation
format, because such a kernel gives the exact result of operands that are off by so much (backward stability)."""


@functools.cache
def _in_steps() -> Mapping[Any, Callable[..., Any]]:
    from torch._decomp import get_decompositions

    found = [getattr(torch.ops.aten, name) for name in _KERNELS_OF_SEVERAL_STEPS if hasattr(torch.ops.aten, name)]
    return get_decompositions(found)


class StochasticArithmetic(TorchDispatchMode):
    """Rounds what every ATen op computes in `wide` (and its complex numbers) to `precision` bits, at random.

    Exponents are not limited: overflow is no rounding error. `accumulation`: bits of the format of sums. `in_steps`:
    whether kernels of several steps are taken apart, so that each step rounds. Tensors of other dtypes are left alone.
    """

    def __init__(self, precision: int, accumulation: int, seed: int, wide: torch.dtype, *, in_steps: bool) -> None:
        super().__init__()
        self.precision, self.accumulation = precision, accumulation
        self.generator = torch.Generator().manual_seed(seed)
        self.wide = wide
        self.in_steps = in_steps

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        steps = _in_steps().get(func) if self.in_steps else None
        if steps is not None:
            with self:
                made = steps(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if func._schema.name.removeprefix("aten::") in _SUMS:
            written = {i for i, argument in enumerate(func._schema.arguments) if _is_written(argument)}
            args = tuple(a if i in written else self._moved(a) for i, a in enumerate(args))
        made = func(*args, **kwargs)
        self._round(func, made)
        return made

    def _moved(self, x: Any) -> Any:
        if isinstance(x, list | tuple):
            return type(x)(map(self._moved, x)) if type(x) in (list, tuple) else x
        if not self._is_rounded(x):
            return x
        steps = torch.rand(x.shape, dtype=torch.float64, generator=self.generator).sub_(0.5)
        return x * (1 + steps * 2.0 ** (1 - self.accumulation)).to(self.wide)

    def _is_rounded(self, x: Any) -> bool:
        return (
            isinstance(x, Tensor)
            and x.layout is torch.strided
            and (x.dtype is self.wide or (x.is_complex() and x.real.dtype is self.wide))
        )

    def _round(self, func: Any, made: Any) -> None:
        """Rounds in place what `func` computed: its results but for views, which show what was rounded before."""
        returns = func._schema.returns
        values = made if isinstance(made, tuple) and len(returns) > 1 else (made,)
        for declared, value in zip(returns, values, strict=False):
            if declared.alias_info is None or declared.alias_info.is_write:
                for x in value if isinstance(value, list | tuple) else (value,):
                    if self._is_rounded(x):
                        self.round_(x)

    def round_(self, x: Tensor) -> None:
        """Rounds the elements of `x` in place."""
        parts = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
        rounded = round_randomly(parts.double(), self.precision, self.generator).to(self.wide)
        x.copy_(torch.view_as_complex(rounded) if x.is_complex() else rounded)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


@contextmanager
def stochastic_arithmetic(mode: StochasticArithmetic) -> Iterator[StochasticArithmetic]:
    """Everything within computes in `mode`, attention in its single steps where the mode takes kernels apart."""
    with ExitStack() as stack:
        if mode.in_steps:
            stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
        yield stack.enter_context(mode)


def root_mean_squares(draws: Iterable[list[Tensor | None] | None]) -> list[Tensor | None] | None:
    """By result and element, of several draws of an error whose mean is 0: an estimate of its standard deviation.

    None where one of the draws could not be made. Draws are used up, so that one of them is in memory at a time.
    """
    lengths: list[Tensor | None] = []  # of the vectors of an element's draws: no square overflows or underflows
    count = 0
    for errors in draws:
        if errors is None:
            return None
        lengths = lengths or [None] * len(errors)
        for i in range(len(errors)):
            lengths[i] = _longer(lengths[i], errors[i])
            errors[i] = None
        count += 1
    return [None if length is None else length.div_(math.sqrt(count)) for length in lengths]


def _longer(length: Tensor | None, error: Tensor | None) -> Tensor | None:
    """The length of a vector that gets one more component."""
    return error if length is None or error is None else length.hypot_(error)
