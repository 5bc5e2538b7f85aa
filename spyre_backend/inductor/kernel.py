"""One Inductor kernel, recorded as a tile program.

Upstream's SIMDKernel decides what a kernel computes; instead of writing text line by line, this one records its
instructions, and writes the program when all splits of the iteration ranges are known.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch

from spyre_backend import upstream
from spyre_backend.inductor.axes import refine
from spyre_backend.inductor.expressions import SymbolTable, Translator
from spyre_backend.inductor.handler import OpsHandler
from spyre_backend.inductor.types import compute_dtype, literal, program_dtype
from spyre_backend.program import Program, SpyreUnsupported, dumps
from spyre_backend.program.ir import (
    Bucketize,
    Buffer,
    Check,
    CheckBounds,
    Compute,
    Constant,
    Index,
    Instruction,
    Load,
    Matmul,
    Random,
    Reduce,
    Region,
    Scan,
    Sort,
    Store,
    Value,
)
from spyre_backend.program.liveness import live
from spyre_backend.program.opcodes import Distribution, Elementwise, Reduction, StoreMode

Var = Any
# made into an instruction once the axes are known; None where the buffer that it stores to is gone by then
Pending = Callable[[Translator], Instruction | None]

_REDUCTIONS = {
    "sum": Reduction.SUM,
    "prod": Reduction.PROD,
    "min": Reduction.MIN,
    "max": Reduction.MAX,
    "fmax": Reduction.FMAX,
    "any": Reduction.ANY,
    "xor_sum": Reduction.XOR_SUM,
    "argmin": Reduction.ARGMIN,
    "argmax": Reduction.ARGMAX,
    "welford_reduce": Reduction.WELFORD,
    "welford_combine": Reduction.WELFORD_COMBINE,
    "online_softmax_reduce": Reduction.SOFTMAX_STATISTICS,
}

_STORE_MODES = {
    None: StoreMode.OVERWRITE,
    "atomic_add": StoreMode.ADD,
    "atomic_min": StoreMode.MIN,
    "atomic_max": StoreMode.MAX,
    "atomic_mul": StoreMode.PROD,
}


class SpyreKernel(upstream.SIMDKernel):  # type: ignore[misc, name-defined]
    """Records `ops.*` calls of the fused nodes; `codegen_kernel` turns the record into a serialised program."""

    # upstream's: known expressions, and the mask that loads are under at the moment
    cse: Any
    _load_mask: Var
    _load_other: Any

    def __init__(self, tiling: Any, features: Any, *args: Any, **kwargs: Any) -> None:
        # Programs address with 64 bits. Upstream takes 32 where sizes fit, and guards on that: a compilation again
        # where they do not, for nothing.
        features.select_index_dtype = lambda: torch.int64
        super().__init__(tiling, features, *args, **kwargs)
        # called by upstream without arguments on entering the kernel
        self.overrides = functools.partial(OpsHandler, self)
        self._body: list[Pending] = []
        self._stores: list[Pending] = []
        self._indices: list[sympy.Basic] = []
        self._dots: dict[str, tuple[Var, Var]] = {}
        self._symbols = SymbolTable()
        self.program: Program | None = None
        self._arguments: list[str] = []

    # ---- decisions that upstream asks for ----------------------------------------------------------------------------

    def should_use_persistent_reduction(self) -> bool:
        # a reduction sees all of its elements at once, so that no loop over them is ever split
        return True

    def should_use_cooperative_reduction(self) -> bool:
        return False

    def dtype_to_str(self, dtype: torch.dtype) -> str:
        return str(dtype)

    def __enter__(self) -> "SpyreKernel":
        entered = super().__enter__()
        # upstream's proxy asks three analyses for every call, of which only the bounds are of use here
        self.exit_stack.enter_context(upstream.set_ops_handler(OpsProxy(self, OpsHandler(self))))
        return entered

    # ---- recording ---------------------------------------------------------------------------------------------------

    def _define(
        self, key: tuple, dtypes: tuple[torch.dtype, ...], make: Callable[[Translator, tuple[Value, ...]], Instruction]
    ) -> tuple[Var, ...]:
        """Record an instruction with results of `dtypes`, once per `key`."""
        found = self.cse.try_get(key)
        if found is None:
            found = tuple(self.cse.newvar(upstream.unknown_bounds(), dtype=dtype, shape=()) for dtype in dtypes)
            values = tuple(Value(var.name, program_dtype(var.dtype)) for var in found)
            self.cse.put(key, found)
            self._body.append(lambda translate: make(translate, values))
        else:
            for var in found:
                var.use_count += 1
        return found

    def _index(self, index: sympy.Basic | int) -> sympy.Basic:
        index = sympy.sympify(index)
        self._indices.append(index)
        return index

    def constant(self, value: Any, dtype: torch.dtype) -> Var:
        """The literal `value` as a value of exactly `dtype`."""
        if isinstance(value, sympy.Basic) and not value.is_number:
            return self.index_value(value, dtype)
        text = literal(value, dtype)
        return self._define(("constant", text, dtype), (dtype,), lambda _, out: Constant(out[0], text))[0]

    def index_value(self, expr: sympy.Basic | int, dtype: torch.dtype) -> Var:
        """The value of an index expression, as `dtype`."""
        expr = self._index(expr)
        if expr.is_number:
            return self.constant(expr, dtype)
        return self._define(("index", expr, dtype), (dtype,), lambda t, out: Index(out[0], t(expr)))[0]

    def compute_op(self, op: Elementwise, args: tuple[Var, ...], dtype: torch.dtype) -> Var:
        """An elementwise instruction; the operands already have the dtypes that it takes."""
        used = tuple(arg.name for arg in args)
        return self._define((op, used, dtype), (dtype,), lambda _, out: Compute(out[0], op, used))[0]

    def cast(self, x: Var, dtype: torch.dtype) -> Var:
        """`x`, a value or a bare number, as `dtype`."""
        if not isinstance(x, upstream.CSEVariable):
            return self.constant(x, dtype)
        return x if x.dtype == dtype else self.compute_op(Elementwise.CAST, (x,), dtype)

    def as_float(self, x: Var) -> Var:
        """`x` in a floating dtype."""
        dtype = self.promoted(x)
        return self.cast(x, dtype if dtype.is_floating_point else torch.float32)

    def promoted(self, *args: Var) -> torch.dtype:
        """The dtype in which operands meet. Bare numbers only decide the kind (integer or floating)."""
        dtypes = [arg.dtype for arg in args if isinstance(arg, upstream.CSEVariable)]
        numbers = [arg for arg in args if not isinstance(arg, upstream.CSEVariable)]
        dtype = functools.reduce(torch.promote_types, dtypes) if dtypes else torch.bool
        if any(_is_floating(number) for number in numbers) and not dtype.is_floating_point:
            return torch.float32
        if dtype == torch.bool and any(not isinstance(number, bool) for number in numbers):
            return torch.int64
        return dtype

    # ---- memory ------------------------------------------------------------------------------------------------------

    def load(self, name: str, index: sympy.Basic) -> Var:
        buffer = self.args.input(name)
        dtype = upstream.graph_dtype(name)
        index = self._index(index)
        mask = self._load_mask.name if self._load_mask is not None else None
        (var,) = self._define(
            ("load", buffer, index, mask),
            (dtype,),
            lambda t, out: Load(out[0], buffer, t(index), mask, literal(0, dtype) if mask else "0"),
        )
        return self.cast(var, compute_dtype(dtype))

    def store(self, name: str, index: sympy.Basic, value: Var, mode: str | None = None) -> None:
        if mode not in _STORE_MODES:
            raise SpyreUnsupported(f"store with mode {mode}")
        buffer = self.args.output(name)
        value = self.cast(value, upstream.graph_dtype(name)).name
        index, everywhere = self._index(index), self.inside_reduction
        mask = self._load_mask.name if self._load_mask is not None else None

        def make(translate: Translator) -> Instruction | None:
            if upstream.is_buffer_removed(name):
                return None
            axes = tuple(axis.name for axis in self._axes if everywhere or not axis.reduction)
            return Store(buffer, translate(index), value, axes, _STORE_MODES[mode], mask)

        self._stores.append(make)

    def check_bounds(self, expr: sympy.Basic, size: sympy.Basic, lower: bool, upper: bool) -> None:
        if not (lower or upper):
            return
        expr, size = self._index(expr), self._index(size)
        mask = self._load_mask.name if self._load_mask is not None else None
        key = ("check_bounds", expr, size, lower, upper, mask)
        self._define(key, (), lambda t, _: CheckBounds(t(expr), t(size), lower, upper, mask))

    def device_assert_async(self, cond: Var, msg: str) -> None:
        condition = self.cast(cond, torch.bool).name
        self._define(("check", condition, msg), (), lambda *_: Check(condition, msg))

    # ---- over the reduction axes -------------------------------------------------------------------------------------

    def dot(self, x: Var, y: Var) -> Var:
        """The product inside a matmul. It only means something to the `dot` reduction that follows."""
        dtype = self.promoted(x, y)
        x, y = self.cast(x, dtype), self.cast(y, dtype)
        product = self.compute_op(Elementwise.MUL, (x, y), dtype)
        self._dots[product.name] = (x, y)
        return product

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Var) -> Any:
        if reduction_type == "dot":
            return self._matmul(dtype, value)
        if reduction_type in _WITH_VALUE:
            return self._arg_with_value(dtype, src_dtype, reduction_type, value)
        kind = _REDUCTIONS.get(reduction_type)
        if kind is None:
            raise SpyreUnsupported(f"reduction {reduction_type}")
        args = value if isinstance(value, tuple) else (value,)
        positions = kind in (Reduction.ARGMIN, Reduction.ARGMAX)
        dtype = torch.int64 if positions else torch.bool if kind is Reduction.ANY else compute_dtype(dtype)
        if not positions:
            args = tuple(self.cast(arg, dtype) for arg in args)
        used = tuple(arg.name for arg in args)
        count = upstream.reduction_num_outputs(reduction_type)
        found = self._define((kind, used, dtype), (dtype,) * count, lambda _, out: Reduce(out, kind, used))
        return found if count > 1 else found[0]

    def _arg_with_value(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Var) -> Any:
        extremum, position, what = _WITH_VALUE[reduction_type]
        content = value[0] if isinstance(value, tuple) else value
        found = {
            "value": lambda: self.reduction(content.dtype, content.dtype, extremum, content),
            "index": lambda: self.reduction(torch.int64, src_dtype, position, value),
        }
        chosen = tuple(found[part]() for part in what)
        return chosen if len(chosen) > 1 else chosen[0]

    def _matmul(self, dtype: torch.dtype, value: Var) -> Var:
        if value.name not in self._dots:
            raise SpyreUnsupported("a dot reduction of something else than a product")
        dtype = compute_dtype(dtype)
        a, b = (self.cast(x, dtype).name for x in self._dots[value.name])
        return self._define(("matmul", a, b, dtype), (dtype,), lambda _, out: Matmul(out[0], (a, b)))[0]

    def scan(self, dtypes: tuple[torch.dtype, ...], combine_fn: Callable, values: tuple[Var, ...]) -> tuple[Var, ...]:
        types = tuple(compute_dtype(dtype) for dtype in dtypes)
        args = tuple(self.cast(value, dtype) for value, dtype in zip(values, types, strict=True))
        used = tuple(arg.name for arg in args)
        region = self._region(combine_fn, types)
        shape = (region.params, region.body, region.results)
        return self._define(("scan", used, shape), types, lambda _, out: Scan(out, used, region))

    def _region(self, combine: Callable, types: tuple[torch.dtype, ...]) -> Region:
        """Record a combine function on fresh parameters."""
        outer_body, outer_cse = self._body, self.cse
        # names of its own, so that equal combine functions are equal regions
        self._body, self.cse = [], upstream.CSE(name_prefix="c")
        try:
            params = [
                tuple(self.cse.newvar(upstream.unknown_bounds(), dtype=dtype, shape=()) for dtype in types)
                for _ in range(2)
            ]
            combined = upstream.unwrap_ops_value(combine(*params))
            outputs = tuple(self.cast(var, dtype).name for var, dtype in zip(combined, types, strict=True))
            translate = Translator({}, SymbolTable())
            body = tuple(pending(translate) for pending in self._body)
        finally:
            self._body, self.cse = outer_body, outer_cse
        if not all(isinstance(instruction, (Compute, Constant)) for instruction in body):
            raise SpyreUnsupported("a scan whose combine function is not elementwise")
        declared = tuple(Value(var.name, program_dtype(var.dtype)) for side in params for var in side)
        return Region(declared, body, outputs)  # type: ignore[arg-type]

    def sort(
        self, dtypes: tuple[torch.dtype, ...], values: tuple[Var, ...], stable: bool, descending: bool
    ) -> tuple[Var, ...]:
        types = tuple(compute_dtype(dtype) for dtype in dtypes)
        used = tuple(self.cast(value, dtype).name for value, dtype in zip(values, types, strict=True))
        key = ("sort", used, stable, descending)
        return self._define(key, types, lambda _, out: Sort(out, used, bool(descending), bool(stable)))

    # ---- others ------------------------------------------------------------------------------------------------------

    def random(self, distribution: Distribution, args: tuple[Var, ...], dtype: torch.dtype) -> Var:
        """A draw from the counter-based generator."""
        used = tuple(self.cast(arg, torch.int64).name for arg in args)
        return self._define((distribution, used), (dtype,), lambda _, out: Random(out[0], distribution, used))[0]

    def bucketize(
        self,
        values: Var,
        boundaries: tuple[str, sympy.Expr, sympy.Expr, sympy.Expr],
        boundary_indices: Var,
        indexing_dtype: torch.dtype,
        right: bool,
        sorter: tuple[str, sympy.Expr] | None = None,
        sorter_indices: Var | None = None,
    ) -> Var:
        name, length, _, stride = boundaries
        buffer, dtype = self.args.input(name), upstream.graph_dtype(name)
        value = self.cast(self.cast(values, dtype), dtype).name
        start = self.cast(boundary_indices, torch.int64).name
        length, stride = self._index(length), self._index(stride)
        through = (self.args.input(sorter[0]), self._index(sorter[1])) if sorter else (None, None)
        sorter_start = self.cast(sorter_indices, torch.int64).name if sorter else None
        key = ("bucketize", value, buffer, start, length, stride, right, through, sorter_start)

        def make(t: Translator, out: tuple[Value, ...]) -> Instruction:
            step = t(through[1]) if sorter else None
            return Bucketize(
                out[0], value, buffer, start, t(length), t(stride), bool(right), through[0], sorter_start, step
            )

        return self._define(key, (indexing_dtype,), make)[0]

    @contextlib.contextmanager
    def mask_loads(self, mask: Var, value: Any) -> Iterator[Var]:
        mask = upstream.unwrap_ops_value(mask)
        prior, prior_other = self._load_mask, self._load_other
        combined = self.cast(mask, torch.bool)
        if prior is not None:
            combined = self.compute_op(Elementwise.LOGICAL_AND, (prior, combined), torch.bool)
        self._load_mask, self._load_other = combined, value
        try:
            yield combined
        finally:
            self._load_mask, self._load_other = prior, prior_other

    def partial_accumulate(self, *args: Any, **kwargs: Any) -> None:
        raise SpyreUnsupported("partial accumulation")

    # ---- output ------------------------------------------------------------------------------------------------------

    def codegen_kernel(self, name: str | None = None) -> str:
        """The program as text, without a name, so that equal kernels share one definition."""
        used = {symbol for index in self._indices for symbol in index.free_symbols}
        self._axes, variables = refine(self.range_trees, used, self._symbols)
        translate = Translator(variables, self._symbols)
        made = (pending(translate) for pending in (*self._body, *self._stores))
        body = live([instruction for instruction in made if instruction is not None])
        touched = _buffers(body)
        written = {instruction.buffer for instruction in body if isinstance(instruction, Store)}
        buffers = []
        definitions, outer, *_ = self.args.python_argdefs()
        for definition, argument in zip(definitions, outer, strict=True):
            if definition.name in touched:
                dtype = program_dtype(upstream.graph_dtype(argument))
                buffers.append(Buffer(definition.name, dtype, definition.name in written))
                self._arguments.append(argument)
        self.program = Program("", tuple(self._axes), self._symbols.names, tuple(buffers), tuple(body))
        return dumps(self.program)

    def call_kernel(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Write the launch into the wrapper."""
        wrapper = upstream.V.graph.wrapper_code
        values = []
        for expression in self._symbols.expressions:
            for symbol in sorted(expression.free_symbols, key=str):
                wrapper.ensure_size_computed(symbol)
            values.append(wrapper.val_to_arg_str(expression))
        wrapper.generate_kernel_call(
            name, [*self._arguments, *values], device=upstream.V.graph.get_current_device_or_throw(), triton=False
        )


_WITH_VALUE = {
    "argmax_value": ("max", "argmax", ("value",)),
    "argmin_value": ("min", "argmin", ("value",)),
    "argmax_with_value": ("max", "argmax", ("value", "index")),
    "argmin_with_value": ("min", "argmin", ("value", "index")),
}


class OpsProxy(upstream.CSEProxy):  # type: ignore[misc, name-defined]
    """Routes `ops.*` to the kernel, keeping upstream's bounds analysis, which decides which indices to check."""

    def _default(self, name: str, args: tuple, kwargs: dict) -> Any:
        result = getattr(self.parent_handler, name)(*args, **kwargs)
        bounds = self._bound_variable(name, *args, **kwargs)
        for var in result if isinstance(result, tuple) else (result,):
            if isinstance(var, upstream.CSEVariable):
                var.bounds = var.bounds.tighten(bounds)
        return result

    def store(self, name: str, index: Any, value: Any, mode: str | None = None) -> None:
        # upstream knows one accumulating mode; after none of them is the stored value what memory holds
        super().store(name, index, value, mode=mode)
        if mode is not None:
            self.kernel.cse.store_cache.pop(name, None)
            self.kernel.must_keep_buffers.add(name)


def _is_floating(number: Any) -> bool:
    return isinstance(number, (float, sympy.Float)) or (isinstance(number, sympy.Expr) and not number.is_integer)


def _buffers(body: list[Instruction]) -> set[str]:
    found = set()
    for instruction in body:
        match instruction:
            case Load(buffer=buffer) | Store(buffer=buffer):
                found.add(buffer)
            case Bucketize(boundaries=boundaries, sorter=sorter):
                found.update(name for name in (boundaries, sorter) if name)
    return found
