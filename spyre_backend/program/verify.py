"""The rules of a well-formed program, checked before it is ever launched."""

from spyre_backend.program.dtypes import DType
from spyre_backend.program.errors import ProgramError
from spyre_backend.program.expr import names
from spyre_backend.program.ir import (
    Bucketize,
    Compute,
    Constant,
    Instruction,
    Load,
    Matmul,
    Program,
    Random,
    Reduce,
    Region,
    Scan,
    Sort,
    Store,
    expressions,
    operands,
    reduction_axes,
    results,
)
from spyre_backend.program.opcodes import REDUCTIONS, Distribution, check_types


def verify(program: Program) -> None:
    """Raise ProgramError unless `program` follows the rules of the IR.

    Every name is declared before use and once; pointwise axes come before reduction axes; dtypes fit the opcodes;
    loads and stores agree with the buffer's dtype; stores go to written buffers.
    """
    _Verifier(program).run()


class _Verifier:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.buffers = {buffer.name: buffer for buffer in program.buffers}
        self.axes = {axis.name for axis in program.axes}
        self.reduction = set(reduction_axes(program))
        self.values: dict[str, DType] = {}
        self.scope = {*self.axes, *program.symbols}

    def run(self) -> None:
        program = self.program
        if len(self.buffers) != len(program.buffers) or len(self.scope) != len(program.axes) + len(program.symbols):
            raise ProgramError(f"{program.name}: a buffer, axis or symbol is declared twice")
        kinds = [axis.reduction for axis in program.axes]
        if kinds != sorted(kinds):
            raise ProgramError(f"{program.name}: a pointwise axis follows a reduction axis")
        for axis in program.axes:
            self._known(names(axis.size), set(program.symbols), f"size of axis {axis.name}")
        for instruction in program.body:
            self._instruction(instruction)

    def _known(self, used: frozenset[str] | set[str], declared: set[str], where: str) -> None:
        if missing := sorted(used - declared):
            raise ProgramError(f"{self.program.name}: {where} uses undeclared {', '.join(missing)}")

    def _instruction(self, instruction: Instruction) -> None:
        where = type(instruction).__name__
        self._known(set(operands(instruction)), set(self.values), where)
        for expression in expressions(instruction):
            self._known(names(expression), self.scope | set(self.values), where)
        self._types(instruction)
        for value in results(instruction):
            if value.name in self.values or value.name in self.scope:
                raise ProgramError(f"{self.program.name}: {value.name} is defined twice")
            self.values[value.name] = value.dtype

    def _types(self, instruction: Instruction) -> None:
        types = tuple(self.values[name] for name in operands(instruction))
        match instruction:
            case Compute(op=op, result=result):
                check_types(op, types, result.dtype)
            case Load(buffer=buffer, result=result):
                self._buffer(buffer, result.dtype, "load")
            case Store(buffer=buffer, value=value, axes=axes):
                self._known(set(axes), self.axes, "store")
                self._buffer(buffer, self.values[value], "store")
                if not self.buffers[buffer].written:
                    raise ProgramError(f"{self.program.name}: store to {buffer}, which is not a written buffer")
            case Reduce(kind=kind, results=values, args=args, over=over):
                self._known(set(over), self.reduction, kind.value)
                shape = REDUCTIONS[kind]
                low, high = shape.operands
                if not low <= len(args) <= high or len(values) != shape.results:
                    raise ProgramError(f"{self.program.name}: {kind.value} of {len(args)} into {len(values)}")
            case Matmul(result=result, over=over):
                self._known(set(over), self.reduction, "matmul")
                if set(types) != {result.dtype}:
                    raise ProgramError(f"{self.program.name}: matmul operands must have the accumulator's dtype")
            case Scan(results=values, args=args, combine=combine):
                if len(values) != len(args) or len(combine.params) != 2 * len(args):
                    raise ProgramError(f"{self.program.name}: scan of {len(args)} values with a wrong combine region")
                self._region(combine)
            case Sort(results=values, args=args):
                if tuple(value.dtype for value in values) != types:
                    raise ProgramError(f"{self.program.name}: sort changes a dtype")
            case Random(distribution=distribution, args=args):
                if len(args) != (4 if distribution is Distribution.INTEGER else 2):
                    raise ProgramError(f"{self.program.name}: random.{distribution.value} of {len(args)} operands")
            case Bucketize(boundaries=boundaries, sorter=sorter):
                self._known({boundaries, sorter} - {None}, set(self.buffers), "bucketize")  # type: ignore[arg-type]

    def _buffer(self, name: str, dtype: DType, what: str) -> None:
        self._known({name}, set(self.buffers), what)
        if self.buffers[name].dtype is not dtype:
            declared = self.buffers[name].dtype.value
            raise ProgramError(f"{self.program.name}: {what} of {dtype.value} on {name}, a {declared} buffer")

    def _region(self, region: Region) -> None:
        types = {param.name: param.dtype for param in region.params}
        for instruction in region.body:
            if isinstance(instruction, Compute):
                self._known(set(instruction.args), set(types), "combine region")
                check_types(instruction.op, tuple(types[name] for name in instruction.args), instruction.result.dtype)
            elif not isinstance(instruction, Constant):
                raise ProgramError(f"{self.program.name}: a combine region is elementwise")
            types[instruction.result.name] = instruction.result.dtype
        self._known(set(region.results), set(types), "combine region")
