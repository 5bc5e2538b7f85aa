"""A model to check, wherever it comes from: how it is made, what it is called with, what of that varies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from conformance.cases import Tolerance

if TYPE_CHECKING:
    import torch
    from torch import nn


DECODES = frozenset({"causal-lm", "seq2seq-lm", "speech-seq2seq", "image-text-to-text", "multimodal-lm"})
"""Tasks whose models write tokens one by one. Which of them do, and how, they are asked when they are made."""


@dataclass(frozen=True)
class Sizes:
    """How large the calls of a model are: batches in rows, lengths in tokens (or frames, or samples)."""

    batch: int = 2  # of what is compiled at fixed sizes; for symbolic ones it is the largest
    length: int = 16
    batches: tuple[int, ...] = (3, 5, 1)  # that symbolic sizes have beside it
    lengths: tuple[int, ...] = (8, 24, 33, 7, 65)
    """That are replayed at the smallest batch above 1: even and odd, below a window and above, past a stick of 64."""
    prompt: int = 10  # tokens of the prompt of decoding
    steps: int = 70  # teacher-forced steps, the last of them past one stick of 64
    free: int = 24  # steps on its own tokens


@dataclass(frozen=True)
class Subject:
    """One model. Sizes that it does not have (a vision model's length) are ignored where they are given."""

    name: str
    build: Callable[[torch.dtype, int, bool], nn.Module]
    """`build(dtype, seed, training)`: the model on the CPU, in evaluation mode or to be trained, without dropout."""
    inputs: Callable[[torch.dtype, int, int, int], dict[str, Any]]
    """`inputs(dtype, seed, batch, length)`: keyword arguments of a forward."""
    lengths: bool = False  # whether an input varies with the length
    length_multiple: int = 1  # lengths that the model takes are multiples of it
    batched: bool = True  # whether an input varies with the batch
    dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # input -> dimensions that vary
    cache_argument: str | None = None  # of the forward, where the model decodes token by token
    labels: str = ""  # the input that it can be trained to predict
    sizes: Sizes = field(default_factory=Sizes)
    drive: Callable[..., Any] | None = None  # the judged call of a forward; None: all that the model returns
    measure: Callable[[Any, Any, Any], Mapping[str, float]] | None = None  # of a forward, see `Sample.measure`
    exact: Callable[[nn.Module], nn.Module | None] = lambda module: None
    """What computes the same and also takes float64, where the model itself does not; None: it does."""
    script: Callable[[torch.dtype], tuple[str, str]] | None = None
    """`script(dtype)`: statements and an expression that make such a model without this package; weights differ."""
    notes: str = ""
    tolerance: Tolerance | None = None  # that somebody declared; None: the engine's
    around: Callable[[], AbstractContextManager[None]] | None = None  # within which its code runs; None: as it is
