"""Concatenations whose operands are computed in place, at plain indices.

Upstream computes each operand at `Identity(index - start)`, so that Triton does not widen the index arithmetic; a
program has one integer type. With that wrapper in it a number is not comparable to sympy, so that operands that clamp a
position (`arange(n).clamp(min=1)`, which upstream turns into an index expression) cannot be compiled.
"""

from collections.abc import Callable, Sequence
from typing import Any

import sympy

from spyre_backend import upstream


def with_plain_indices(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """`theirs`, a lowering whose first argument is what it concatenates, one tensor or several."""

    def lower(inputs: Any, *args: Any, **kwargs: Any) -> Any:
        for x in inputs if isinstance(inputs, (list, tuple)) else (inputs,):
            _accept_wrapped_indices(x)
        return theirs(inputs, *args, **kwargs)

    return lower


def _accept_wrapped_indices(x: Any) -> None:
    """Let `x`, if it is not in memory yet, be computed at indices that are wrapped in `Identity`.

    Changed is what is in its box, so that whoever else holds `x` still shares the memory that it is given later.
    """
    ir = upstream.ir
    box = x.data.unwrap_view() if isinstance(x.data, ir.BaseView) else x.data
    node: Any = box.data if isinstance(box, ir.StorageBox) else None
    if type(node) is not ir.Pointwise or isinstance(node.inner_fn, _AtPlainIndices):
        return
    with ir.IRNode.current_origins(node.origins):
        made = ir.Pointwise.create(
            device=node.device,
            dtype=node.dtype,
            inner_fn=_AtPlainIndices(node.inner_fn),
            ranges=node.ranges,
            origin_node=node.origin_node,
            traceback=node.traceback,
        )
    box.data = made.data.data


class _AtPlainIndices:
    """The inner function of a pointwise node, called at the indices without their wrappers."""

    def __init__(self, inner: Callable[[Sequence[Any]], Any]) -> None:
        self._inner = inner

    def __call__(self, index: Sequence[Any]) -> Any:
        return self._inner([_unwrapped(position) for position in index])


def _unwrapped(position: Any) -> Any:
    if not isinstance(position, sympy.Basic) or not position.has(upstream.Identity):
        return position
    return position.replace(upstream.Identity, lambda wrapped: wrapped)
