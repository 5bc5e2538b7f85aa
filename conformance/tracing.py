"""From a captured graph to the signatures of its calls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch import Tensor

from conformance import observe, signatures
from conformance.signatures import Signature, Size


class Unreadable(ValueError):
    """A call that has no signature; says what of it has none."""


class Trace:
    """Signatures of graphs, each once, in the order in which they came; and how many calls have none, by reason."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}
        self.unread: dict[str, int] = {}

    def clear(self) -> None:
        self.texts.clear()
        self.unread.clear()

    def add(self, graph: torch.fx.GraphModule) -> None:
        """Read every call of an operator in a graph whose nodes have fake values (`meta["val"]`)."""
        for node in graph.graph.nodes:
            if node.op == "call_function" and observe.is_operator(node.target):
                try:
                    text = signatures.encode(signature_of(graph, node))
                except Unreadable as error:
                    self.unread[str(error)] = self.unread.get(str(error), 0) + 1
                else:
                    self.texts[text] = None


def signature_of(graph: torch.fx.GraphModule, node: torch.fx.Node) -> Signature:
    """The signature of one call of an operator. Raises `Unreadable`."""
    reader = _Reader(graph)
    args = [reader.argument(arg) for arg in node.args]
    kwargs = {name: reader.argument(value) for name, value in node.kwargs.items()}
    dtype = reader.dtype or _result_dtype(node.meta.get("val"))
    if dtype is None:
        raise Unreadable("no tensor among arguments and results")
    return Signature(str(node.target), _name(dtype), args, kwargs, reader.hints)


class _Reader:
    """Arguments of one call. Symbols are named s0, s1, ... in the order of the call, so that equal calls look alike."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.graph = graph
        self.names: dict[Any, Any] = {}  # symbol -> the one that stands for it
        self.hints: dict[str, int] = {}
        self.first: torch.dtype | None = None
        self.floating: torch.dtype | None = None

    @property
    def dtype(self) -> torch.dtype | None:
        return self.floating or self.first

    def argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            value = getattr(self.graph, str(value.target)) if value.op == "get_attr" else value.meta.get("val")
            if value is None:
                raise Unreadable("an argument without a value")
        if isinstance(value, list | tuple):
            return [self.argument(item) for item in value]
        if isinstance(value, Tensor):
            return {"tensor": self._tensor(value)}
        if isinstance(value, torch.SymInt):
            size = self._size(value)
            return {"size": size} if isinstance(size, str) else size
        if isinstance(value, torch.SymFloat | torch.SymBool):
            hint = observe.symbolic(value)[1]
            if hint is None:
                raise Unreadable("a symbolic number without a value")
            return _plain(hint)
        return _plain(value)

    def _tensor(self, t: Tensor) -> list[Any]:
        if t.layout is not torch.strided or t.is_nested or t.is_quantized:
            raise Unreadable(f"a tensor of layout {t.layout}" if t.layout is not torch.strided else "a nested tensor")
        self.first = self.first or t.dtype
        if t.is_floating_point() or t.is_complex():
            self.floating = self.floating or t.dtype
        sizes = [self._size(size) for size in t.shape]
        strides = [self._size(stride) for stride in t.stride()]
        offset = self._size(t.storage_offset())
        at_hints = signatures.contiguous(self._hint(size) for size in sizes)
        if self._hint(offset) == 0 and at_hints == tuple(map(self._hint, strides)):
            return [_name(t.dtype), sizes]
        return [_name(t.dtype), sizes, strides, offset]

    def _size(self, size: int | torch.SymInt) -> Size:
        if isinstance(size, int):
            return size
        expression, hint = observe.symbolic(size)
        if hint is None:
            raise Unreadable("a size that is known only when it runs")
        if expression is None or not expression.free_symbols:
            return int(hint)
        symbols = sorted(expression.free_symbols - set(self.names), key=str)
        hints = {symbol: observe.symbol_hint(size, symbol) for symbol in symbols}
        for symbol, value in hints.items():
            if value is None:
                raise Unreadable("a size that is known only when it runs")
            self.names[symbol] = sympy.Symbol(f"s{len(self.names)}", **symbol.assumptions0)
            self.hints[str(self.names[symbol])] = value
        text = str(expression.xreplace(self.names))
        try:
            understood = signatures.evaluate(text, self.hints) == hint
        except signatures.SignatureError:
            understood = False
        return text if understood else int(hint)

    def _hint(self, size: Size) -> int:
        return signatures.evaluate(size, self.hints)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise Unreadable("an integer of more than 64 bits")
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, complex):
        return {"complex": [str(value.real), str(value.imag)]}
    if isinstance(value, torch.device):
        return {"device": value.type}
    for kind, name in _KINDS.items():
        if isinstance(value, kind):
            return {name: _name(value)}
    raise Unreadable(f"an argument of type {type(value).__name__}")


_KINDS: Mapping[type, str] = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


def _name(value: Any) -> str:
    """`float32` for `torch.float32`."""
    return str(value).removeprefix("torch.")


def _result_dtype(value: Any) -> torch.dtype | None:
    items = value if isinstance(value, list | tuple) else [value]
    return next((item.dtype for item in items if isinstance(item, Tensor)), None)
