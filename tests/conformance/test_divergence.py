"""A broken part of a model is named, with the op that is broken."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from conformance import divergence
from conformance.backends.eager import EagerBackend
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.judgement.findings import Check


class Block(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.up, self.activation, self.down = nn.Linear(4, 8), activation, nn.Linear(8, 4)

    def forward(self, x, cache=None):
        return x + self.down(self.activation(self.up(x)))


class Model(nn.Module):
    """Three blocks in a container that is never called itself, of which the second has another activation."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Block(nn.SiLU()), Block(nn.GELU()), Block(nn.SiLU())])
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, cache=object())
        return self.head(x)


class Breaks(EagerBackend):
    """Computes one function of torch wrongly, in what it compiles; or refuses it."""

    def __init__(self, name, by):
        self.broken, self.by = name, by

    def compile(self, fn, *, dynamic, fullgraph=False):
        from torch.utils._python_dispatch import TorchDispatchMode

        broken, by = self.broken, self.by

        class Broken(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                return by(out) if func.name() == broken else out

        def run(*args, **kwargs):
            with Broken():
                return fn(*args, **kwargs)

        return run


def refuse(out):
    raise NotImplementedError("no such op here")


SAMPLE = Sample(0, Model(), (torch.linspace(-1, 1, 8).reshape(2, 4),), {}, NumericalClass.COMPOSITE, "", "Model")
CASE = Case("model", "m", "float32", ShapeMode.STATIC, Direction.FORWARD)


@pytest.mark.parametrize(
    ("op", "by", "path", "kind"),
    [
        ("aten::gelu", lambda out: out * 1.01, "layers.1.activation", "GELU"),
        ("aten::silu", lambda out: out + 0.1, "layers.0.activation", "SiLU"),
        ("aten::gelu", refuse, "layers.1.activation", "GELU"),
        ("aten::add.Tensor", lambda out: out + 1, "layers.0", "Block"),
    ],
)
def test_the_smallest_part_and_its_op_are_named(op, by, path, kind):
    found = divergence.locate(Breaks(op, by), CASE, SAMPLE)
    assert found is not None
    assert (found.path, found.kind, found.op) == (path, kind, op)
    assert found.message


def test_a_model_that_returns_an_object_of_its_own_is_taken_apart_too():
    class Cached(Model):
        def forward(self, x):
            return {"logits": super().forward(x), "cache": object()}

    sample = dataclasses.replace(SAMPLE, fn=Cached())
    found = divergence.locate(Breaks("aten::gelu", lambda out: out * 1.01), CASE, sample)
    assert found is not None
    assert found.op == "aten::gelu"


def test_what_is_right_has_no_culprit():
    assert divergence.locate(EagerBackend(), CASE, SAMPLE) is None


def test_a_failure_at_other_sizes_is_looked_for_there():
    def at_batch_three(out):
        return out * 2 if out.shape[0] == 3 else out

    sample = dataclasses.replace(SAMPLE, replays=(((torch.ones(3, 4),), {}),))
    assert divergence.locate(Breaks("aten::gelu", at_batch_three), CASE, sample) is None
    found = divergence.locate(Breaks("aten::gelu", at_batch_three), CASE, sample, call=1)
    assert found is not None
    assert (found.path, found.op) == ("layers.1.activation", "aten::gelu")


def test_a_model_that_is_called_in_two_ways_is_looked_at_in_both():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Sequential(nn.Linear(4, 4), nn.SiLU()), nn.Sequential(nn.GELU())

        def forward(self, x, encoded=None):
            return self.encoder(x) if encoded is None else self.decoder(x + encoded)

    def encode_and_decode(model, x):
        return model(x, encoded=model(x))

    sample = dataclasses.replace(SAMPLE, fn=Either(), drive=encode_and_decode)
    found = divergence.locate(Breaks("aten::gelu", lambda out: out * 1.01), CASE, sample)
    assert found is not None
    assert (found.path, found.op) == ("decoder.0", "aten::gelu")


def test_a_module_whose_ops_are_right_one_by_one_is_named_without_an_op():
    class Fuses(EagerBackend):
        """Is wrong only where it compiles a block as a whole."""

        def compile(self, fn, *, dynamic, fullgraph=False):
            whole = isinstance(fn, Block | Model)
            return (lambda *args, **kwargs: fn(*args, **kwargs) + 1) if whole else fn

    found = divergence.locate(Fuses(), CASE, SAMPLE)
    assert found is not None
    assert (found.path, found.kind, found.op) == ("layers.0", "Block", "")
    assert "as a whole" in str(found)


def test_a_search_that_takes_too_long_ends():
    import time

    class Slow(EagerBackend):
        def compile(self, fn, *, dynamic, fullgraph=False):
            time.sleep(10)
            return fn

    assert divergence.locate(Slow(), CASE, SAMPLE, seconds=0.5) is None


class Halves(nn.Module):
    def forward(self, x):
        return x.split(2, dim=-1)


class Adds(nn.Module):
    """Shares memory between the results of a part, and not between its own."""

    def __init__(self):
        super().__init__()
        self.halves = Halves()

    def forward(self, x):
        left, right = self.halves(x * 2)
        return left + right


def copies(out):
    return [half.clone() for half in out]


def narrower(out):
    return [half[:, :1] for half in out]


@pytest.mark.parametrize(
    ("by", "check", "path"),
    [
        (copies, Check.VALUES, None),
        (copies, None, None),
        (copies, Check.ALIAS, "1"),
        (narrower, Check.VALUES, None),
        (narrower, Check.SHAPE, "1"),
        (lambda out: [half + float("inf") for half in out], Check.VALUES, "1"),
        (lambda out: [half * 2 for half in out], Check.SHAPE, None),
        (refuse, Check.VALUES, "1"),
    ],
)
def test_a_part_is_a_culprit_only_where_it_fails_like_the_model(by, check, path):
    backend = Breaks("aten::split.Tensor", by)
    sample = dataclasses.replace(SAMPLE, fn=nn.Sequential(nn.SiLU(), Halves()))
    found = divergence.locate(backend, CASE, sample, check=check)
    assert (found and found.path) == path


def test_what_a_part_alone_returns_as_copies_is_no_culprit():
    sample = dataclasses.replace(SAMPLE, fn=Adds())
    assert divergence.locate(Breaks("aten::split.Tensor", copies), CASE, sample) is None
