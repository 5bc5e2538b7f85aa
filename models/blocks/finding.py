"""Which parts of a model are blocks, and what tells two apart."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

import torch
from torch import nn

from conformance import observe, parts
from conformance.parts import Call

TOO_SMALL = (nn.Linear, nn.Embedding, nn.Dropout, nn.Identity, nn.modules.conv._ConvNd, nn.Sequential, nn.ModuleList)
"""What is an op rather than a block, or holds blocks."""

ROLES = {
    "norm": r"Norm",
    "attention": r"Attention|Attn|SelfAtt",
    "experts": r"Moe(?!.*Layer)|MoE|Experts|SparseMLP",
    "mlp": r"MLP|Mlp|FF|FeedForward|Intermediate|Dense",
    "mixer": r"Mixer|Mamba|SSM|Conv|Recurrent|Delta",
    "layer": r"Layer|Block|Stage",
}
"""Role -> what the names of its classes have in them; the first that matches. Others are a `part`."""

Block = tuple[str, str, Call]
"""Path in the model, key, and what the block gets in a forward."""


def blocks(model: nn.Module, inputs: dict[str, object]) -> Iterator[Block]:
    """The layers of a model (what its lists of modules hold) and the parts directly in them; each distinct one once.

    The key is the block's role and a hash of the graph of ops that it runs: shapes, dtypes and constants, but not the
    values of weights, nor the name of its class. Blocks that cannot run alone are left out.
    """
    with torch.no_grad():
        calls = parts.recorded(model, lambda: model(**inputs))
    modules = dict(model.named_modules())
    layers = [f"{name}.{i}" for name, m in modules.items() if isinstance(m, nn.ModuleList) for i in range(len(m))]
    seen: set[str] = set()
    for path in (found for layer in layers for found in (layer, *parts.below(layer, calls))):
        module = modules[path]
        if path not in calls or isinstance(module, TOO_SMALL) or not any(True for _ in module.parameters()):
            continue
        key = key_of(module, calls[path])
        if key and key not in seen:
            seen.add(key)
            yield path, key, calls[path]


def role(name: str) -> str:
    """What a class is in a model, by its name."""
    whole = re.search(r"(Layer|Block|Stage)$", name) and not re.search(r"Attention|Attn|FF|Mlp|MLP", name)
    if whole:
        return "layer"
    return next((each for each, pattern in ROLES.items() if re.search(pattern, name)), "part")


def key_of(module: nn.Module, call: Call) -> str:
    """`mlp.1a2b3c4d`; empty for a module that cannot run alone."""
    args, kwargs = call
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            graph = observe.written_graph(module, args, kwargs)
    except Exception:  # it needs the cache that it was not given, say
        return ""
    return f"{role(type(module).__name__)}.{hashlib.sha256(graph.encode()).hexdigest()[:8]}"
