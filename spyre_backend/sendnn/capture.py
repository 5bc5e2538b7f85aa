"""The Dynamo backend: from Dynamo's graph, which may have symbolic sizes, to plans for plain ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from spyre_backend import upstream
from spyre_backend.sendnn.decompositions import DECOMPOSITIONS
from spyre_backend.sendnn.errors import SendnnUnsupported
from spyre_backend.sendnn.graph import Graph
from spyre_backend.sendnn.ops import attention

OPTIONS = {"host": False}
"""What `torch.compile(options=...)` may hold, with its default. `host`: leave to it what there is no lowering for."""


def sendnn(
    module: GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """`torch.compile(backend="sendnn")`. Raises `ValueError` for an option that there is not."""
    given = {**OPTIONS, **(options or {})}
    if unknown := given.keys() - OPTIONS.keys():
        raise ValueError(f"sendnn has no option {', '.join(sorted(unknown))}; it has {', '.join(OPTIONS)}")
    device = _device(example_inputs)
    if device is None:
        return module.forward  # nothing of it is on the device
    keep_attention_whole(module)
    if _is_symbolic(example_inputs):
        return _Sizes(module, device, bool(given["host"]))
    return upstream.aot_module(module, example_inputs, *_compilers(device, bool(given["host"])), DECOMPOSITIONS)


class _Sizes:
    """A graph with symbolic sizes: compiled for each combination of plain ones that it is called with."""

    def __init__(self, module: GraphModule, device: torch.device, host: bool) -> None:
        self.module, self.device, self.host = module, device, host
        self.compiled: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        key = tuple(
            (tuple(arg.shape), arg.stride(), arg.requires_grad) if isinstance(arg, torch.Tensor) else arg
            for arg in args
        )
        found = self.compiled.get(key)
        if found is None:
            fake = upstream.fake_inputs(args)
            found = self.compiled[key] = upstream.aot_module(
                self.module, fake, *_compilers(self.device, self.host), DECOMPOSITIONS
            )
        return found(*args)


def _compilers(device: torch.device, host: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def forwards(module: GraphModule, inputs: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
        return upstream.boxed(Graph(module, device, host=host).compile())

    def backwards(module: GraphModule, inputs: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
        def refuse(*_: Any) -> Any:
            raise SendnnUnsupported("sendnn: it computes forwards only, and this asks for gradients")

        return upstream.boxed(refuse)

    return forwards, backwards


def keep_attention_whole(module: GraphModule) -> None:
    """Put the operator of ours in the place of PyTorch's, which AOTAutograd would take apart; ours has no gradient."""
    for node in module.graph.nodes:
        if node.target is torch.nn.functional.scaled_dot_product_attention and not _wants_gradient(node):
            _replace(node)
    module.recompile()


def _wants_gradient(node: Node) -> bool:
    operands = (each.meta.get("example_value") for each in node.all_input_nodes)
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in operands)


def _replace(node: Node) -> None:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if given.get("dropout_p"):
        return
    node.target = attention.attention
    node.args = (
        given["query"], given["key"], given["value"], given.get("attn_mask"), given.get("is_causal", False),
        given.get("scale"), given.get("enable_gqa", False),
    )  # fmt: skip
    node.kwargs = {}


def _device(inputs: Sequence[Any]) -> torch.device | None:
    found = (each.device for each in inputs if isinstance(each, torch.Tensor) and each.device.type == "spyre")
    return next(found, None)


def _is_symbolic(inputs: Sequence[Any]) -> bool:
    return any(
        isinstance(size, torch.SymInt)
        for each in inputs
        for size in ((*each.shape, *each.stride()) if isinstance(each, torch.Tensor) else (each,))
    )
