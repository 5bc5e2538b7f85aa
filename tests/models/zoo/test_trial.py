"""What only running a tiny model shows."""

import pytest
import torch
from torch import nn

from models.zoo import trial
from models.zoo.recipe import InputSpec, Recipe

RECIPE = Recipe(
    model_type="toy",
    task="causal-lm",
    class_name="Toy",
    config={},
    inputs={"x": InputSpec("floats", ("batch", "length"), "float", low=1.0, high=2.0)},
)


class Sparse(nn.Module):
    """Keeps the values at the positions that a score ranks highest; a ReLU makes scores equal."""

    def __init__(self, shift):
        super().__init__()
        self.shift = shift

    def forward(self, x):
        at = torch.relu(torch.sin(100 * x) - self.shift).topk(4).indices
        return {"logits": torch.zeros_like(x).scatter(-1, at, 1.0) * x}


class Sorted(nn.Module):
    """Takes rows in the order of their groups, which have no order within, and puts them back."""

    def forward(self, x):
        order = (x > 1.5).to(torch.int64).argsort(dim=-1)
        taken = x.gather(-1, order).cumsum(-1)
        return {"logits": taken[..., -1:] * torch.zeros_like(x).scatter(-1, order, x.gather(-1, order))}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Sparse(shift=2.0), "aten::topk in the model itself"),  # every score is 0
        (Sparse(shift=-2.0), ""),  # none is
        (Sorted(), ""),  # the order among equals moves a sum by its rounding errors only
    ],
)
def test_what_depends_on_ties_is_told(model, expected):
    assert trial.settle(model, RECIPE).ties == expected


def test_a_size_that_the_model_does_not_run_at_tells_nothing():
    class Short(Sparse):
        def forward(self, x):
            if x.shape[1] > 40:
                raise ValueError("too long")
            return super().forward(x)

    recipe = trial.settle(Short(shift=2.0), RECIPE)
    assert recipe.ties == ""
    assert recipe.lengths
