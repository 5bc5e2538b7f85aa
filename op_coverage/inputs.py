"""The inputs of an op's samples: made from OpInfo, the same in every process, lazily and in index order."""

from __future__ import annotations

import contextlib
import hashlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from op_coverage import upstream
from op_coverage.upstream import pytree

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


@dataclass(frozen=True)
class OpSample:
    """One OpInfo sample, its tensors detached: `args` starts with OpInfo's `input`."""

    index: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    differentiable: tuple[int, ...]  # positions, among the flattened tensors, of those that required grad
    origin: upstream.SampleInput
    on_cpu: tuple[int, ...] = ()  # positions, among the flattened tensors, of those that stay on the CPU


def generate(info: upstream.OpInfo, dtype: torch.dtype, *, requires_grad: bool, seed: int) -> Iterator[OpSample]:
    """The samples of `info` on the CPU in OpInfo's order.

    The generators of torch, Python and NumPy are seeded before each sample from the op, the dtype, the index and
    `seed`, and put back after it: a sample depends neither on what ran before nor on how many samples are read.
    Raises whatever the op's sample function raises.
    """
    made: Iterator[upstream.SampleInput] | None = None
    index = 0
    while True:
        with seeded(info.full_name, str(dtype), str(index), str(seed)):
            if made is None:
                made = iter(info.sample_inputs_func(info, "cpu", dtype, requires_grad))
            sample = next(made, None)
        if sample is None:
            return
        yield _detach(index, sample)
        index += 1


@contextlib.contextmanager
def seeded(*parts: str) -> Iterator[None]:
    """Within the block, random numbers of torch (CPU), Python and NumPy depend on `parts` alone."""
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=4).digest()
    seed = int.from_bytes(digest, "little")
    of_torch, of_python, of_numpy = torch.default_generator.get_state(), random.getstate(), numpy.random.get_state()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(of_torch)
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)


def _detach(index: int, sample: upstream.SampleInput) -> OpSample:
    leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
    seen: dict[int, torch.Tensor] = {}  # a tensor that is passed twice stays one tensor
    differentiable = []
    position = 0
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if leaf.requires_grad:
                differentiable.append(position)
            leaves[i] = seen.setdefault(id(leaf), leaf.detach())
            position += 1
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return OpSample(index, args, kwargs, tuple(differentiable), sample)


def most_elements(sample: OpSample) -> int:
    """Number of elements of the largest input tensor, 0 without tensors."""
    return max((t.numel() for t in tensors(sample.args, sample.kwargs)), default=0)


def tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """All tensors of a call, flattened."""
    return [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]


def result(fn: Callable[..., Any], call: Call) -> tuple[Any] | None:
    """What eager CPU gives for a call, in a tuple; None if it raises. Works on copies, with fixed random numbers."""
    args, kwargs = pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, call)
    try:
        with seeded("result"), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the judged call will say it again
            return (fn(*args, **kwargs),)
    except Exception:
        return None
