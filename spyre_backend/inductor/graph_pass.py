"""The pass over the graph between autograd and lowering: expands this backend's decompositions, and keys the caches."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from spyre_backend import numerics, upstream
from spyre_backend.inductor.cache_key import own_digest
from spyre_backend.inductor.decompositions import RULES
from spyre_backend.inductor.rules import Rule


class SpyreGraphPass(upstream.CustomGraphModulePass):  # type: ignore[misc, name-defined]
    """Called by Inductor with every graph that has a tensor on the device."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, gm: fx.GraphModule) -> None:
        moved: dict[fx.Node, fx.Node] = {}
        for node in list(gm.graph.nodes):
            if node.op == "call_function" and self._computes_here(node):
                _move_numbers(gm, node, moved)
            rule = RULES.get(node.target) or RULES.get(str(node.target)) if node.op == "call_function" else None
            if rule is not None and self._on_device(node):
                _expand(gm, node, rule)

    def uuid(self) -> str:
        """What Inductor hashes into its cache keys: the source of this backend, and the numbers it compiles for."""
        return f"{own_digest()}-{numerics.MODE.value}"

    def _computes_here(self, node: fx.Node) -> bool:
        """Whether the node computes element by element and its result is on the device."""
        value = node.meta.get("val")
        here = isinstance(value, torch.Tensor) and value.device.type == self.device
        return here and (_is_primitive(node) or torch.Tag.pointwise in getattr(node.target, "tags", ()))

    def _on_device(self, node: fx.Node) -> bool:
        values = [argument.meta.get("val") for argument in (node, *node.all_input_nodes)]
        return any(isinstance(value, torch.Tensor) and value.device.type == self.device for value in values)


def _move_numbers(gm: fx.GraphModule, node: fx.Node, moved: dict[fx.Node, fx.Node]) -> None:
    """Bring the numbers of the host among the operands to the device of the others; `moved` are those that are there.

    Upstream computes where the first operand is unless another one is on a device of a kind that it knows itself, and
    the result of a number of the host times a tensor of ours would be on the host. And what it does not lower it calls
    with operands of one size, which a number of the host is then no more.
    """
    device = node.meta["val"].device
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.device == device:
            continue
        if source not in moved:
            with gm.graph.inserting_before(node):
                moved[source] = gm.graph.call_function(torch.ops.prims.device_put.default, (source, device))
            moved[source].meta["val"] = value.to(device)
        node.replace_input_with(source, moved[source])
        if _is_primitive(node):
            _expand_like(gm, node, moved[source])


def _is_primitive(node: fx.Node) -> bool:
    """Primitives, which have no tags, take operands of one size: only a number of the host may have another."""
    target = node.target
    return getattr(target, "namespace", "") == "prims" and target is not torch.ops.prims.device_put.default


def _expand_like(gm: fx.GraphModule, node: fx.Node, number: fx.Node) -> None:
    """Give an operand of no dimensions the size of the operand that has the size of the result."""
    whole = node.meta["val"].shape
    other = next((each for each in node.all_input_nodes if each.meta["val"].dim() == len(whole)), number)
    if other is number:
        return
    with gm.graph.inserting_before(node):
        sizes: list[Any] = []
        for dim, size in enumerate(whole):
            if not isinstance(size, int):
                known = gm.graph.call_function(torch.ops.aten.sym_size.int, (other, dim))
                known.meta["val"] = size
                sizes.append(known)
            else:
                sizes.append(size)
        expanded = gm.graph.call_function(torch.ops.aten.expand.default, (number, sizes))
        expanded.meta["val"] = number.meta["val"].expand(whole)
    node.replace_input_with(number, expanded)


def _expand(gm: fx.GraphModule, node: fx.Node, rule: Rule) -> None:
    """Replace `node` by what `rule` makes of it, where it applies."""
    inputs = node.all_input_nodes
    values = [argument.meta["val"] for argument in inputs]

    known = dict(zip(inputs, values, strict=True))
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
    if not rule.applies(*args, **kwargs):
        return

    def expand(*operands: Any) -> Any:
        traced = dict(zip(inputs, operands, strict=True))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), traced.__getitem__)
        return rule.expand(*args, **kwargs)

    _replace(gm, node, list(_inline(gm, node, upstream.trace(expand, values), inputs)))


def _inline(gm: fx.GraphModule, node: fx.Node, traced: fx.GraphModule, inputs: list[fx.Node]) -> Iterator[Any]:
    """Copy the nodes of `traced` before `node`; yields what stands for each of its outputs."""
    copies: dict[fx.Node, Any] = {}
    remaining = iter(inputs)
    with gm.graph.inserting_before(node):
        for inner in traced.graph.nodes:
            if inner.op == "placeholder":
                copies[inner] = next(remaining)
            elif inner.op == "output":
                outputs = inner.args[0] if isinstance(inner.args[0], (list, tuple)) else [inner.args[0]]
                yield from (copies[output] if isinstance(output, fx.Node) else output for output in outputs)
            else:
                if inner.op == "get_attr":
                    raise RuntimeError(f"the decomposition of {node.target} makes a constant tensor")
                copies[inner] = gm.graph.node_copy(inner, copies.__getitem__)
                for key in ("stack_trace", "original_aten", "from_node", "nn_module_stack"):
                    if key in node.meta:
                        copies[inner].meta[key] = node.meta[key]


def _replace(gm: fx.GraphModule, node: fx.Node, results: list[Any]) -> None:
    if isinstance(node.meta["val"], torch.Tensor):
        node.replace_all_uses_with(results[0])
    else:
        for user in list(node.users):
            # the parts of a tuple are taken with operator.getitem
            user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
            gm.graph.erase_node(user)
    gm.graph.erase_node(node)
