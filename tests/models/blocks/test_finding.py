"""Which parts of a model are blocks, and which are the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models.blocks import finding


class Mlp(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.up, self.down = nn.Linear(4, width), nn.Linear(width, 4)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class OtherMLP(Mlp):
    """The same by another name."""


class Layer(nn.Module):
    def __init__(self, mlp):
        super().__init__()
        self.norm, self.mlp, self.dropout = nn.LayerNorm(4), mlp, nn.Dropout(0.1)

    def forward(self, x, cache):
        return x + self.dropout(self.mlp(self.norm(x)))


class Model(nn.Module):
    def __init__(self, *mlps):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(5, 4), nn.ModuleList(map(Layer, mlps)), nn.Linear(4, 5)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cache=object())
        return self.head(x)


IDS = {"ids": torch.arange(3)[None]}


def found(*mlps):
    return {path: key for path, key, _ in finding.blocks(Model(*mlps).eval(), IDS)}


def test_layers_and_their_parts_are_blocks_each_distinct_one_once():
    blocks = found(Mlp(), OtherMLP(), Mlp())
    assert list(blocks) == ["layers.0", "layers.0.norm", "layers.0.mlp"]
    assert [key.partition(".")[0] for key in blocks.values()] == ["layer", "norm", "mlp"]


def test_another_width_is_another_block():
    assert list(found(Mlp(), Mlp(16))) == ["layers.0", "layers.0.norm", "layers.0.mlp", "layers.1", "layers.1.mlp"]


def test_keys_do_not_depend_on_weights_or_names_of_classes():
    assert found(Mlp())["layers.0.mlp"] == found(OtherMLP())["layers.0.mlp"] != found(Mlp(16))["layers.0.mlp"]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("LlamaDecoderLayer", "layer"),
        ("T5Block", "layer"),
        ("BertAttention", "attention"),
        ("T5LayerSelfAttention", "attention"),
        ("T5LayerFF", "mlp"),
        ("MixtralSparseMoeBlock", "layer"),
        ("LlamaMLP", "mlp"),
        ("LlamaRMSNorm", "norm"),
        ("T5LayerNorm", "norm"),
        ("MambaMixer", "mixer"),
        ("Gemma3RotaryEmbedding", "part"),
    ],
)
def test_roles(name, role):
    assert finding.role(name) == role
