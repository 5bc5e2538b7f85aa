"""From a graph of ATen operators, functional and with plain sizes, to programs.

Results are expressions that are computed where they are used. `keep` decides which of them go to memory: what several
programs read, what a matrix product or a reduction needs whole, and what leaves the graph. A program is made when its
result is first read, and takes along what it computes on its way and somebody else will read.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from spyre_backend import report
from spyre_backend.program import DType, to_text_form
from spyre_backend.program.expr import Sym
from spyre_backend.sendnn.block import Block, program_dtype
from spyre_backend.sendnn.errors import SendnnUnsupported
from spyre_backend.sendnn.index import Index, contiguous
from spyre_backend.sendnn.ops import LOWERINGS, VIEWS
from spyre_backend.sendnn.plan import Alias, HostCall, Launch, Plan, Step, leaves
from spyre_backend.sendnn.tensors import Memory, Tensor, Traits, in_memory, joined
from spyre_backend.simulator import kernel

log = logging.getLogger(__name__)

MOST_TENSORS = 8
"""That one kernel may touch (torch-spyre, RFC 0552)."""

_CHEAP = 2  # instructions that are repeated rather than stored


class Graph:
    """The compilation of one graph. `host` leaves to PyTorch what there is no lowering for, instead of refusing it."""

    def __init__(self, module: GraphModule, device: torch.device, *, host: bool = False) -> None:
        self.module = module
        self.device = device
        self.host = host
        self._blocks: list[Block | HostCall] = []
        self._active: list[Block] = []
        self._leaving: list[Tensor] = []
        self._given: set[Memory] = set()  # that the graph does not write
        self._constants: dict[Memory, torch.Tensor] = {}
        self._names = 0
        self._values: dict[Node, Any] = {}
        merge_equal(module)
        self._uses = _uses(module)
        self._lowered: Counter[str] = Counter()
        self._external: Counter[str] = Counter()
        self.node: Node = next(iter(module.graph.nodes))

    def compile(self) -> Plan:
        """Raises SendnnUnsupported for an operator, a dtype or a use of them that there is no lowering for."""
        inputs: list[Memory | None] = []
        outputs: list[Any] = []
        for node in self.module.graph.nodes:
            self.node = node
            if node.op == "placeholder":
                value = node.meta.get("val")  # a plain size has none: it is part of the graph
                is_tensor = isinstance(value, torch.Tensor)
                self._values[node] = self._input(value) if is_tensor else value
                inputs.append(self._values[node].memory if is_tensor else None)
            elif node.op == "get_attr":
                self._values[node] = self._constant(getattr(self.module, node.target))
            elif node.op == "call_function":
                self._values[node] = self._call(node)
            elif node.op == "output":
                outputs = self._outputs(node.args[0])
        # the last first: what leaves the graph on the way to it is stored on that way
        for output in reversed(outputs):
            if isinstance(output, Tensor):
                self.write(output)
        return self._plan(inputs, [each.memory if isinstance(each, Tensor) else each for each in outputs])

    def _outputs(self, nodes: Sequence[Any]) -> list[Any]:
        """What leaves the graph: tensors to be written, views of such, and plain values."""
        known = {node for node in (*self._values, *nodes) if isinstance(node, Node) and _leaves(node, nodes)}
        shared = Counter(map(_storage, known))
        return [self._alias(node) if shared[_storage(node)] > 1 else self._output(node) for node in nodes]

    def _alias(self, node: Node) -> Any:
        """A result that shares memory with an operand or another result: a view of its base, as in the graph."""
        base = _base(node)
        whole, view, tensor = base.meta["val"], node.meta["val"], self._values[base]
        strides = tuple(map(int, whole.stride()))
        if base is node or not isinstance(tensor, Tensor):
            return self._output(node)
        self.keep(tensor)
        assert tensor.memory is not None
        if tensor.memory.strides != strides:
            return self._output(node)
        self.write(tensor)
        offset = int(view.storage_offset()) - int(whole.storage_offset())
        return Alias(tensor.memory, tuple(map(int, view.shape)), tuple(map(int, view.stride())), offset)

    # ---- nodes ----

    def _input(self, value: torch.Tensor) -> Tensor:
        dtype = self.dtype(value.dtype)
        strides = tuple(int(stride) for stride in value.stride())
        memory = self._memory(dtype, tuple(map(int, value.shape)), strides)
        self._given.add(memory)
        return in_memory(memory)

    def _constant(self, value: torch.Tensor) -> Tensor:
        dtype = self.dtype(value.dtype)
        memory = self._memory(dtype, tuple(value.shape))
        self._constants[memory] = value.contiguous()
        self._given.add(memory)
        return in_memory(memory)

    def _call(self, node: Node) -> Any:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self._values.__getitem__)  # type: ignore[arg-type]
        lower = LOWERINGS.get(node.target) or LOWERINGS.get(str(node.target))
        if not isinstance(node.target, torch._ops.OpOverload):
            return lower(self, *args, **kwargs) if lower is not None else self.refuse("there is no lowering for it")
        name = report.operator_name(node.target)
        try:
            if lower is None:
                self.refuse("there is no lowering for it")
            self._limit(each for each in _tensors((args, tuple(kwargs.values()))))
            found = lower(self, *args, **kwargs)  # type: ignore[misc]
        except SendnnUnsupported:
            if not self.host:
                raise
            self._external[name] += 1
            return self._on_host(node, args, kwargs)
        self._lowered[name] += 1
        if node.target not in VIEWS:
            for tensor in _tensors(found):
                tensor.origin = tensor.origin or self.operator
                if self._uses[node] > 1 and not self.is_cheap(tensor):
                    self.keep(tensor)
        return found

    def _output(self, node: Any) -> Any:
        if not isinstance(node, Node):
            return node
        value = self._values[node]
        if not isinstance(value, Tensor):
            return value
        strides = tuple(map(int, node.meta["val"].stride()))
        if value.memory in self._given:
            return value
        if value not in self._leaving:
            if value.memory is None or not value.ready:
                value.memory = self._memory(value.dtype, value.shape, strides)
            if value.memory.strides == strides:
                self._leaving.append(value)
                return value
        copy = Tensor(value.shape, value.dtype, value.read, value.traits_here, self, value.origin)
        copy.memory = self._memory(value.dtype, value.shape, strides)
        return copy

    # ---- what lowerings ask for ----

    @property
    def operator(self) -> str:
        """The name of the operator that is being lowered, without its overload: `add`, `softmax`."""
        assert isinstance(self.node.target, torch._ops.OpOverload)
        return self.node.target._schema.name.split("::")[1].strip("_")

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, skip: int) -> dict[str, Any]:
        """The arguments of the operator that is being lowered by name, the first `skip` left out."""
        assert isinstance(self.node.target, torch._ops.OpOverload)
        names = [argument.name for argument in self.node.target._schema.arguments][skip:]
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def dtype(self, dtype: torch.dtype) -> DType:
        """The program's dtype. Raises SendnnUnsupported for one that this compiler does not compute with."""
        found = program_dtype(dtype)
        return found if found is not None else self.refuse(f"it has no {str(dtype).removeprefix('torch.')}")

    def refuse(self, why: str) -> Any:
        """Raise SendnnUnsupported for the operator that is being lowered."""
        raise SendnnUnsupported(f"sendnn: {_described(self.node)}: {why}{_place_in_code(self.node)}")

    def output(
        self, at: Callable[[Block, Index], str], traits: Traits, which: int | None = None, dtype: DType | None = None
    ) -> Tensor:
        """A result of the operator that is being lowered, whose elements `at` computes. `dtype`: where it is another
        than that of other accelerators, which is what the graph says."""
        value = self.node.meta["val"] if which is None else self.node.meta["val"][which]
        shape = tuple(int(size) for size in value.shape)
        return Tensor(shape, dtype or self.dtype(value.dtype), at, traits, graph=self)

    @property
    def uses(self) -> int:
        """How often the result of the operator that is being lowered is used."""
        return self._uses[self.node]

    def is_cheap(self, tensor: Tensor) -> bool:
        """Whether to compute it again is no more than to load it."""
        traits = tensor.traits_here
        return not traits.multiplies and not traits.reduces and traits.depth <= _CHEAP and len(traits.loads) <= 1

    def fits(self, traits: Traits) -> bool:
        """Whether one kernel may read that much, with room for its result and for one that it stores along the way."""
        return len(traits.loads) <= MOST_TENSORS - 2

    def keep(self, tensor: Tensor) -> Tensor:
        """The tensor, which from now on is read from memory."""
        if tensor.memory is None:
            tensor.memory = self._memory(tensor.dtype, tensor.shape)
        return tensor

    def settle(self, tensor: Tensor) -> Tensor:
        """The tensor, read from memory, or a view of what is: its base is kept, unless that has more elements."""
        base = tensor
        while base.memory is None and base.base is not None and math.prod(base.base.shape) <= math.prod(base.shape):
            base = base.base
        self.keep(base)
        return tensor

    def whole(self, tensor: Tensor, *, rows: bool = False) -> Tensor:
        """The tensor as something that may be read at any place: in memory if it is a product, or (unless `rows`) a
        reduction, each element of which is dear."""
        traits = tensor.traits_here
        return self.settle(tensor) if traits.multiplies or (traits.reduces and not rows) else tensor

    def write(self, tensor: Tensor) -> None:
        """Make the program that puts a kept tensor into its memory, unless that is done."""
        if tensor.ready:
            return
        assert tensor.memory is not None
        rows = {dim for dim, size in tensor.traits.rows if -dim <= len(tensor.shape) and tensor.shape[dim] == size}
        if tensor.traits.multiplies:
            rows = set()
        block = Block()
        rank = len(tensor.shape)
        at = {dim: block.axis(size, reduction=dim - rank in rows) for dim, size in enumerate(tensor.shape)}
        index = tuple(at[dim] for dim in range(rank))
        with self.recording(block, tensor, index):
            value = tensor.at(block, index)
        block.store(tensor.memory, index, value, axes=[each.name for each in index if isinstance(each, Sym)])
        tensor.ready = True
        block.origins[tensor.origin] = None

    def recording(self, block: Block, tensor: Tensor | None, index: Index) -> Any:
        """A context in which a block is filled; what it needs and is not in memory yet is written before it."""
        return _Recording(self, block, tensor, index)

    def demand(self, block: Block, tensor: Tensor, index: Index) -> str | None:
        """Called where a kept tensor is read that is not in memory. The value, if this block computes it itself."""
        if any(tensor in each.pending for each in self._active):
            return tensor.at(block, index)
        if (
            block.domain == tensor.shape
            and block.index == index
            and not block.is_masked
            and not tensor.traits.multiplies  # a product divides over the cores as this block may not
            and _touched([*block.pending, tensor]) <= MOST_TENSORS
        ):
            block.pending.append(tensor)
            value = tensor.at(block, index)
            assert tensor.memory is not None
            block.store(tensor.memory, index, value, axes=[each.name for each in index if isinstance(each, Sym)])
            block.origins[tensor.origin] = None
            return value
        self.write(tensor)
        return None

    # ---- memory and steps ----

    def _memory(self, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Memory:
        self._names += 1
        return Memory(f"m{self._names}", dtype, shape, contiguous(shape) if strides is None else strides)

    def _limit(self, tensors: Iterable[Tensor]) -> None:
        """Keep operands until what they read fits into one kernel, with room for its result."""
        operands = list(dict.fromkeys(tensors))
        while not self.fits(joined(operands)):
            largest = max(operands, key=lambda each: len(each.traits_here.loads))
            if len(largest.traits_here.loads) < 2:
                return
            self.settle(largest)

    def _on_host(self, node: Node, args: Any, kwargs: Any) -> Any:
        found = node.meta["val"]
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        operands = [self.keep(each) for each in _tensors((args, tuple(kwargs.values())))]
        for operand in operands:
            self.write(operand)
        written = [
            in_memory(self._memory(self.dtype(each.dtype), tuple(map(int, each.shape)), tuple(map(int, each.stride()))))
            for each in results
        ]

        def make(tensor_of: Callable[[Memory], torch.Tensor]) -> Any:
            return torch.utils._pytree.tree_map_only(Tensor, lambda each: tensor_of(each.memory), (args, kwargs))

        reads = tuple(each.memory for each in operands if each.memory is not None)
        writes = tuple(each.memory for each in written if each.memory is not None)
        self._blocks.append(HostCall(node.target, make, reads, writes))  # type: ignore[arg-type]
        return written if isinstance(found, (tuple, list)) else written[0]

    def _plan(self, inputs: list[Memory | None], outputs: list[Any]) -> Plan:
        needed = {memory for each in outputs if (memory := leaves(each)) is not None}
        steps: list[Step] = []
        for block in reversed(self._blocks):
            if isinstance(block, HostCall):
                steps.append(block)
                needed.update(block.arguments)
                continue
            block.keep_stores({memory.name for memory in needed})
            if block.stores:
                step = self._launch(block)
                steps.append(step)
                needed.update(step.arguments)
        steps.reverse()
        programs = [
            (step.kernel.program.name, step.kernel.program.digest) for step in steps if isinstance(step, Launch)
        ]
        compilation = report.Compilation(dict(self._lowered), dict(self._external), programs)
        report.compilations.append(compilation)
        return Plan(inputs, steps, outputs, self._constants, self.device, compilation)

    def _launch(self, block: Block) -> Launch:
        name = "_".join(("sendnn", *[each for each in block.origins if each][-4:]))
        program = block.program(name)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", to_text_form(program))
        written = tuple(memory for memory, is_written in block.memories.items() if is_written)
        return Launch(kernel.of(program), tuple(block.memories), written)


class _Recording:
    def __init__(self, graph: Graph, block: Block, tensor: Tensor | None, index: Index) -> None:
        self.graph, self.block = graph, block
        if tensor is not None:
            block.domain, block.index = tensor.shape, index
            block.pending.append(tensor)

    def __enter__(self) -> None:
        self.graph._active.append(self.block)

    def __exit__(self, *_: object) -> None:
        self.graph._active.pop()
        for tensor in self.block.pending:
            tensor.ready = True
        self.graph._blocks.append(self.block)


def _base(node: Node) -> Node:
    """What a node is a view of, through views of views, as long as they share memory."""
    found = at = node
    while at.target in VIEWS:
        at = at.all_input_nodes[0]
        if _storage(at) == _storage(node):
            found = at
        elif _storage(at) is not None:
            break  # not a tuple of views, but a copy
    return found


def _leaves(node: Node, outputs: Sequence[Any]) -> bool:
    """Whether what a node holds is known outside of the graph: an operand or a result of it."""
    return node.op == "placeholder" or node in outputs


def _storage(node: Any) -> int | None:
    """What tensors that share memory have in common while they are traced."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for each in value for tensor in _tensors(each)]
    return []


def _touched(stored: Sequence[Tensor]) -> int:
    """How many tensors a kernel touches that stores these."""
    return len(
        frozenset[Memory | None]({each.memory for each in stored}).union(*(each.traits.loads for each in stored))
    )


def merge_equal(module: GraphModule) -> None:
    """Leave one of several equal calls: the graph is functional, so that they have one result, unless it is random."""
    known: dict[Any, Node] = {}
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded not in node.target.tags:
            # the text tells 1, 1.0 and True apart
            key = (node.target, repr(node.args), repr(sorted(node.kwargs.items())))
            if key in known:
                node.replace_all_uses_with(known[key])
            else:
                known[key] = node
    module.graph.eliminate_dead_code()


def _uses(module: GraphModule) -> dict[Node, int]:
    """How often each result is used, those of its views included."""
    uses: dict[Node, int] = {}
    for node in reversed(module.graph.nodes):
        uses[node] = sum(max(1, uses[user]) if user.target in VIEWS else 1 for user in node.users)
    return uses


def _described(node: Node) -> str:
    """`aten::sort.stable of float64[3, 4], int64`."""
    target = node.target
    name = report.operator_name(target) if isinstance(target, torch._ops.OpOverload) else str(target)
    operands = [arg.meta.get("val") for arg in node.all_input_nodes]
    kinds = [
        f"{str(value.dtype).removeprefix('torch.')}{list(map(int, value.shape))}"
        for value in operands
        if isinstance(value, torch.Tensor)
    ]
    return f"{name} of {', '.join(kinds)}" if kinds else name


def _place_in_code(node: Node) -> str:
    """The line of the user's code that the operator comes from, as far as it is known."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    frames = [number for number, line in enumerate(lines) if line.startswith("File ")]
    return "".join(f"\n  {line}" for line in lines[frames[-1] : frames[-1] + 2]) if frames else ""
