"""A suite for the real engine: a few calls of torch, some of which end their process or want too much memory."""

from __future__ import annotations

import ctypes

import torch

from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode


def _add(x):
    return x + 1


def _segfault(x):
    ctypes.string_at(0)


def _a_tebibyte(x):
    return torch.empty(2**40, dtype=torch.uint8)


def _a_gibibyte(x):
    return torch.ones(2**30, dtype=torch.uint8)


class TorchSuite:
    name = "torch"
    kind = "torch"
    calls = (_add, _segfault, _a_tebibyte, _a_gibibyte, _add)

    def cases(self, options):
        return [Case("torch", "calls", "float32", ShapeMode.STATIC, Direction.FORWARD)]

    def samples(self, case, options):
        for index, call in enumerate(self.calls):
            yield Sample(
                index=index,
                fn=call,
                args=(torch.arange(4.0),),
                kwargs={},
                numerics=NumericalClass.ELEMENTWISE,
                digest=call.__name__,
                source=call.__name__,
            )

    def excluded(self, options):
        return {}
