"""A backend that computes GELU wrongly in what it compiles."""

from __future__ import annotations

from pathlib import Path

import torch


def breaks_gelu(module, inputs):
    """A Dynamo backend that runs the graph, each GELU 1 % too large."""
    for node in [n for n in module.graph.nodes if n.op == "call_function" and "gelu" in str(n.target)]:
        with module.graph.inserting_after(node):
            scaled = module.graph.call_function(torch.mul, (node, 1.01))
        node.replace_all_uses_with(scaled)
        scaled.args = (node, 1.01)
    module.recompile()
    return module.forward


class Broken:
    name = "broken"
    protocol_version = 1
    device = "cpu"
    imports = f"import torch, sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom broken import breaks_gelu"
    compile_source = "torch.compile(fn, backend=breaks_gelu, dynamic={dynamic})"

    def availability(self):
        return True, ""

    def capabilities(self):
        return {"device": "cpu"}

    def setup(self):
        pass

    def compile(self, fn, *, dynamic, fullgraph=False):
        return torch.compile(fn, backend=breaks_gelu, dynamic=dynamic, fullgraph=fullgraph)
