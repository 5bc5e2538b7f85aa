"""Mixtures of experts have a float64 reference, though their grouped product does not take it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from conformance.cases import Case, Direction, Options, ShapeMode
from conformance.reference import make_reference
from models import samples, sources
from models.blocks import finding


@pytest.fixture(scope="module")
def mixtral():
    return sources.subject("mixtral.causal-lm", Options())


def reference(kind, sample):
    return make_reference(Case(kind, "mixtral", "float32", ShapeMode.STATIC, Direction.FORWARD), sample)


def test_of_a_model(mixtral):
    case = Case("model", "mixtral.causal-lm", "float32", ShapeMode.STATIC, Direction.FORWARD)
    made = reference("model", next(samples.of_forward(case, mixtral, 0)))
    assert made.exact is not None
    assert made.exact.outputs[0].value.dtype is torch.float64
    assert made.notes == []


def test_of_its_blocks(mixtral):
    model = mixtral.build(torch.float32, 0, False)
    paths = [path for path, *_ in finding.blocks(model, mixtral.inputs(torch.float32, 0, 2, 16))]
    case = Case("block", "x", "float32", ShapeMode.STATIC, Direction.FORWARD)
    with_experts = [path for path in paths if path.endswith("mlp") or path.endswith("layers.0")]
    assert len(with_experts) == 2
    for path in with_experts:
        made = reference("block", samples.of_block(case, mixtral, path, 0))
        assert made.exact is not None, path
