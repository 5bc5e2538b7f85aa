"""Attention as one operator: it is taken out of the model's graph before anybody decomposes it, and is one program, in
which the scores never reach memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from spyre_backend.program import DType
from spyre_backend.program.expr import floordiv
from spyre_backend.program.opcodes import Elementwise as E
from spyre_backend.program.opcodes import Reduction
from spyre_backend.sendnn.block import Block, compute_dtype
from spyre_backend.sendnn.index import Index
from spyre_backend.sendnn.ops.contractions import products
from spyre_backend.sendnn.ops.pointwise import broadcast, where
from spyre_backend.sendnn.ops.table import lowers
from spyre_backend.sendnn.tensors import Tensor, joined

if TYPE_CHECKING:
    from spyre_backend.sendnn.graph import Graph


@torch.library.custom_op("spyre_sendnn::attention", mutates_args=())
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` without dropout: its meaning outside of this compiler."""
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    ).clone()


@attention.register_fake
def _(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: Any, enable_gqa: bool) -> torch.Tensor:
    batches = [query.shape[:-2]] if enable_gqa else [each.shape[:-2] for each in (query, key, value)]
    return query.new_empty((*torch.broadcast_shapes(*batches), query.shape[-2], value.shape[-1]))


@lowers(torch.ops.spyre_sendnn.attention.default)
def lower(
    graph: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None, gqa: bool
) -> Tensor:
    traits, kind = products(graph, q, k, v), compute_dtype(q.dtype)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    sharing = q.shape[-3] // k.shape[-3] if gqa and len(q.shape) > 2 else 1

    def at(block: Block, index: Index) -> str:
        *outer, row, column = index
        keys = [*outer[:-1], floordiv(outer[-1], sharing)] if sharing > 1 else outer
        heads = broadcast_outer(k, keys)
        (j,) = block.inner_axes([k.shape[-2]], index)
        (d,) = block.inner_axes([q.shape[-1]], (*index, j))
        query = block.cast(q.read(block, (*broadcast_outer(q, outer), row, d)), kind)
        key = block.cast(k.read(block, (*heads, j, d)), kind)
        scores = block.compute(E.MUL, block.matmul(query, key, (d,)), factor)
        if is_causal:
            reached = block.compute(E.LE, block.position(j), block.position(row))
            scores = where(block, reached, scores, -math.inf)
        if mask is not None:
            bias = mask.read(block, broadcast(mask, (*outer, row, j)))
            if block.dtypes[bias] is DType.BOOL:
                scores = where(block, bias, scores, -math.inf)
            else:
                scores = block.compute(E.ADD, scores, block.cast(bias, kind))
        top = block.reduce(Reduction.MAX, (scores,), (j,), kind)[0]
        nothing = block.compute(E.EQ, top, -math.inf)
        weight = block.compute(E.EXP, block.compute(E.SUB, scores, where(block, nothing, 0.0, top)))
        total = block.reduce(Reduction.SUM, (weight,), (j,), kind)[0]
        mixed = block.matmul(weight, block.cast(v.read(block, (*broadcast_outer(v, keys), j, column)), kind), (j,))
        return where(block, nothing, 0.0, block.compute(E.TRUEDIV, mixed, total))

    return graph.output(at, traits | joined([mask] if mask is not None else []))


def broadcast_outer(x: Tensor, outer: Any) -> Index:
    """The position along the batch dimensions of `x`, which may be fewer or of size 1."""
    lead = len(x.shape) - 2
    return broadcast(Tensor(x.shape[:lead], x.dtype, x.at), tuple(outer))
