"""Weights that make a tiny random model informative."""

import pytest
import torch

from models.zoo import recipe as recipes
from models.zoo import weights
from models.zoo.recipe import Recipe


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_neither_copies_nor_is_certain(tied):
    config = {"vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "tie_word_embeddings": tied}
    model = recipes.build(
        Recipe(model_type="gpt2", task="causal-lm", class_name="GPT2LMHeadModel", config=config, inputs={})
    )
    ids = torch.randint(1, 256, (4, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(ids).logits
    assert (logits.argmax(-1) == ids).float().mean() < 0.3
    assert logits.softmax(-1).max(-1).values.median() < 0.5
    assert logits.std() > 0.1


def test_a_signal_does_not_grow_through_convolutions_whose_activation_keeps_it():
    class Snake1d(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.alpha = torch.nn.Parameter(torch.ones(1, 64, 1))

        def forward(self, x):
            return x + torch.sin(self.alpha * x).square() / self.alpha

    def grown(activation):
        layers = [layer for _ in range(8) for layer in (torch.nn.Conv1d(64, 64, 3, padding=1), activation())]
        model = torch.nn.Sequential(*layers)
        weights.draw(model, 0)
        with torch.no_grad():
            return float(model(torch.randn(2, 64, 256, generator=torch.Generator().manual_seed(1))).std())

    assert 0.3 < grown(Snake1d) < 4
    assert 0.3 < grown(torch.nn.ReLU) < 4
