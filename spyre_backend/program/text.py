"""The readable form of a program: one instruction a line, stable, so that two programs can be diffed."""

from spyre_backend.program.expr import to_text
from spyre_backend.program.ir import (
    Bucketize,
    Check,
    CheckBounds,
    Constant,
    Index,
    Instruction,
    Load,
    Matmul,
    Program,
    Reduce,
    Region,
    Scan,
    Sort,
    Store,
    Value,
    mnemonic,
    operands,
    results,
)
from spyre_backend.program.opcodes import StoreMode


def to_lines(program: Program) -> list[str]:
    """`program` as lines of text, without line ends."""
    lines = [f"program {program.name} {program.digest}"]
    for axis in program.axes:
        lines.append(f"  {'reduction axis' if axis.reduction else 'axis'} {axis.name} < {to_text(axis.size)}")
    if program.symbols:
        lines.append(f"  symbols {', '.join(program.symbols)}")
    for buffer in program.buffers:
        lines.append(f"  buffer {buffer.name}: {buffer.dtype.value}{' (written)' if buffer.written else ''}")
    for instruction in program.body:
        lines.extend("  " + line for line in _instruction_lines(instruction))
    return lines


def to_text_form(program: Program) -> str:
    """`program` as one text that ends with a newline."""
    return "\n".join(to_lines(program)) + "\n"


def _instruction_lines(instruction: Instruction) -> list[str]:
    left = ", ".join(_value(value) for value in results(instruction))
    line = f"{left} = {_right_side(instruction)}" if left else _right_side(instruction)
    return [line, *_region_lines(instruction.combine)] if isinstance(instruction, Scan) else [line]


def _value(value: Value) -> str:
    return f"%{value.name}: {value.dtype.value}"


def _right_side(instruction: Instruction) -> str:
    name = mnemonic(instruction)
    args = ", ".join(f"%{operand}" for operand in operands(instruction))
    match instruction:
        case Load(buffer=buffer, index=index, mask=mask, other=other):
            guarded = f" where %{mask} else {other}" if mask else ""
            return f"load {buffer}[{to_text(index)}]{guarded}"
        case Store(buffer=buffer, index=index, value=value, axes=axes, mode=mode, mask=mask):
            arrow = "=" if mode is StoreMode.OVERWRITE else f"<-{mode.value}-"
            guarded = f" where %{mask}" if mask else ""
            return f"store {buffer}[{to_text(index)}] {arrow} %{value} over ({', '.join(axes)}){guarded}"
        case Constant(value=value):
            return f"constant {value}"
        case Index(index=index):
            return f"index {to_text(index)}"
        case Reduce(over=over) | Matmul(over=over) if over:
            return f"{name} {args} over ({', '.join(over)})"
        case Sort(descending=descending, stable=stable):
            flags = (" descending" if descending else "") + (" stable" if stable else "")
            return f"sort{flags} {args}"
        case Bucketize(boundaries=boundaries, length=length, stride=stride, right=right, sorter=sorter):
            side = "right" if right else "left"
            through = f" through {sorter}" if sorter else ""
            return f"bucketize {args} in {boundaries} length {to_text(length)} stride {to_text(stride)} {side}{through}"
        case CheckBounds(index=index, size=size, lower=lower, upper=upper):
            low, high = ("0 <= " if lower else ""), (f" < {to_text(size)}" if upper else "")
            return f"check {low}{to_text(index)}{high}" + (f" where {args}" if args else "")
        case Check(message=message):
            return f"check {args} or fail {message!r}"
    return f"{name} {args}"


def _region_lines(region: Region) -> list[str]:
    lines = [f"  combine ({', '.join(_value(param) for param in region.params)})"]
    lines.extend(f"    {line}" for instruction in region.body for line in _instruction_lines(instruction))
    lines.append(f"    yield {', '.join(f'%{name}' for name in region.results)}")
    return lines
