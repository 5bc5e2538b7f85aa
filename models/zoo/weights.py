"""Weights that make a tiny random model informative.

What transformers initialises with is made for training: standard deviations of 0.02, biases, gates and layer scales of
zero or almost zero. At a width of 64 that leaves outputs which hardly depend on the inputs, and a comparison of two
backends would compare zeros. Here every matrix preserves variance, and what is constant gets some spread.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

KEPT = re.compile(
    r"(?:^|\.)(?:A_log|D|dt_bias|dt_proj\.bias|time_decay|time_first|decay\w*|w_gate\w*|recurrent_param|lambda_?\w*|"
    r"log_vars?|logit_scale\w*|logit_bias|inv_freq|parametrizations\..*)$"
)
"""Parameters whose values mean something (decays, logarithms of time steps, temperatures): they stay as initialised."""

CODEBOOK = re.compile(r"codebook|quantizer|\.embed(_avg|_sum)?$|\.embedding$")
"""Buffers that are learnt with a running average, and are all zeros before: every vector would be the same code."""

_SPREAD = 0.1


_VARIANCE = 0.5
"""What a batch norm divides by: activations and gates let a signal fade from layer to layer."""


def _fan_in(module: nn.Module, name: str, parameter: torch.Tensor) -> int:
    """How many products are summed into an output of a weight of two or more dimensions."""
    from torch import nn

    kind = type(module).__name__
    if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        return max(1, parameter.numel() // max(1, parameter.shape[1]) // max(1, module.stride[0]))
    if kind == "Conv1D":  # GPT-2's linear layer, stored as (in, out)
        return parameter.shape[0]
    if isinstance(module, nn.Linear) or "Conv" in kind:
        return parameter[0].numel()
    return parameter.shape[-1]


def _standard_deviation(module: nn.Module, name: str, parameter: torch.Tensor, halved: bool) -> float:
    from torch import nn

    if isinstance(module, nn.Embedding) or "Embedding" in type(module).__name__:
        return 1.0
    if parameter.shape[0] == 1 and name != "weight":  # class tokens, learned positions and queries
        return 0.5
    gain = 2 if halved and "Conv" in type(module).__name__ else 1
    return float(gain / max(1, _fan_in(module, name, parameter))) ** 0.5


def _is_weight_norm(module: nn.Module) -> bool:
    """Whether a module holds a weight as a direction and a magnitude, as torch's weight_norm parametrization does."""
    return {name for name, _ in module.named_parameters(recurse=False)} == {"original0", "original1"}


def _make_tied_embeddings_small(model: nn.Module) -> None:
    """Divides embeddings by the root of their width where they are the output projection as well.

    A standard deviation of 1 would give logits of some tens then, and one token all the probability, most often the
    one that is read: no error of a probability could be seen, and greedy decoding would copy. Other embeddings of that
    width, of positions say, are added to those of tokens and shrink with them.
    """
    from torch import nn

    read = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    tied = {module.embedding_dim for module in embeddings if id(module.weight) in read}
    small = {id(module.weight): module.weight for module in embeddings if module.embedding_dim in tied}
    for weight in small.values():
        weight.mul_(weight.shape[-1] ** -0.5)


def draw(model: nn.Module, seed: int) -> None:
    """Replaces the parameters of a model, and the statistics of its batch norms, in place; seeded."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(seed)

    def normal(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=generator)

    # Most convolutions are followed by something that halves their variance. Snake does not, and is a sine: what grows
    # from layer to layer ends in phases of which float32 knows nothing.
    halved = not any("Snake" in type(module).__name__ for module in model.modules())
    seen: set[int] = set()
    with torch.no_grad():
        for prefix, module in model.named_modules():
            if _is_weight_norm(module):
                magnitude, direction = module.original0, module.original1
                direction.copy_(normal(direction) * direction[0].numel() ** -0.5)
                axes = [axis for axis in range(direction.dim()) if magnitude.shape[axis] == 1]
                magnitude.copy_(direction.square().sum(axes, keepdim=True).sqrt())
                continue
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) in seen or not parameter.is_floating_point() or parameter.numel() == 0:
                    continue
                seen.add(id(parameter))
                unset = not bool(torch.isfinite(parameter).all())
                if KEPT.search(f"{prefix}.{name}") and not unset:
                    continue
                if parameter.dim() >= 2 and parameter.numel() > max(parameter.shape):
                    parameter.copy_(normal(parameter) * _standard_deviation(module, name, parameter, halved))
                    padding = getattr(module, "padding_idx", None)
                    if isinstance(module, nn.Embedding) and padding is not None:
                        parameter[padding].zero_()
                    continue
                if name == "weight" and "Norm" in type(module).__name__ and bool(parameter.any()):
                    parameter.fill_(1)  # some are initialised as if they were those of a linear layer
                    unset = False
                level = 0.0 if unset else float(parameter.flatten()[0])
                if unset or bool(
                    (parameter == level).all()
                ):  # a constant: a bias, a norm's weight, a gate, a layer scale
                    level = level if level == 0 or abs(level) >= _SPREAD else _SPREAD
                    parameter.copy_(level + normal(parameter) * _SPREAD * (abs(level) or 1.0))
        for name, buffer in model.named_buffers():
            if CODEBOOK.search(name) and buffer.dim() >= 2 and buffer.is_floating_point() and not bool(buffer.any()):
                buffer.copy_(normal(buffer))
        for module in model.modules():
            mean, var = getattr(module, "running_mean", None), getattr(module, "running_var", None)
            if isinstance(mean, torch.Tensor) and isinstance(var, torch.Tensor):
                mean.copy_(normal(mean) * _SPREAD)
                var.copy_(_VARIANCE * (1 + normal(var).abs() * _SPREAD))
        _make_tied_embeddings_small(model)
