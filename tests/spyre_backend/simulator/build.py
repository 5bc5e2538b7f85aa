"""Small programs for the simulator's tests."""

from collections.abc import Sequence

import torch

from spyre_backend.program import DType, Program, dumps
from spyre_backend.program.expr import Const, parse
from spyre_backend.program.ir import Axis, Buffer, Compute, Instruction, Load, Matmul, Reduce, Store, Value
from spyre_backend.program.opcodes import Elementwise, Reduction
from spyre_backend.simulator import load


def dtype_of(tensor: torch.Tensor) -> DType:
    """The program's dtype for a tensor."""
    return DType(str(tensor.dtype).removeprefix("torch."))


def run(program: Program, *args: torch.Tensor | int) -> None:
    """Launch through the serialised form, as generated code does."""
    load(dumps(program))(*args)


def axes(outer: Sequence[int], inner: Sequence[int] = ()) -> tuple[Axis, ...]:
    """Axes x0, x1, … and reduction axes r0, r1, …"""
    pointwise = tuple(Axis(f"x{i}", Const(size)) for i, size in enumerate(outer))
    return pointwise + tuple(Axis(f"r{i}", Const(size), reduction=True) for i, size in enumerate(inner))


def elementwise(op: Elementwise, operands: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """`op` over contiguous operands of one shape."""
    count = operands[0].numel()
    out = torch.empty(count, dtype=dtype)
    buffers = [Buffer(f"a{i}", dtype_of(operand)) for i, operand in enumerate(operands)]
    body: list[Instruction] = [Load(Value(f"t{i}", b.dtype), b.name, parse("x0")) for i, b in enumerate(buffers)]
    body.append(Compute(Value("result", dtype_of(out)), op, tuple(f"t{i}" for i in range(len(operands)))))
    body.append(Store("out", parse("x0"), "result", ("x0",)))
    program = Program(
        op.mnemonic, axes([count]), (), (*buffers, Buffer("out", dtype_of(out), written=True)), tuple(body)
    )
    run(program, *operands, out)
    return out.reshape(operands[0].shape)


def over_rows(source: torch.Tensor, instruction: Instruction, stored: Sequence[tuple[str, torch.Tensor, bool]]) -> None:
    """Run `instruction` on the rows of a contiguous `[n, m]` tensor, whose elements are the value `t`.

    `stored` says which values go where, and whether they still vary over the row.
    """
    n, m = source.shape
    buffers = [Buffer("a", dtype_of(source))]
    body: list[Instruction] = [Load(Value("t", buffers[0].dtype), "a", parse(f"{m}*x0 + r0")), instruction]
    for value, out, per_element in stored:
        buffers.append(Buffer(f"out_{value}", dtype_of(out), written=True))
        index = parse(f"{m}*x0 + r0" if per_element else "x0")
        body.append(Store(f"out_{value}", index, value, ("x0", "r0") if per_element else ("x0",)))
    run(
        Program("rows", axes([n], [m]), (), tuple(buffers), tuple(body)),
        source,
        *(out for _, out, _ in stored),
    )


def attention(batch: int, queries: int, keys: int, size: int) -> Program:
    """Unscaled attention of `q[batch, queries, size]` to contiguous `k` and `v` of `[batch, keys, size]`, in fp32."""
    f32 = DType.FLOAT32
    extents = {"b": batch, "i": queries, "e": size, "j": keys, "d": size}
    body: tuple[Instruction, ...] = (
        Load(Value("q", f32), "query", parse(f"{queries * size}*b + {size}*i + d")),
        Load(Value("k", f32), "key", parse(f"{keys * size}*b + {size}*j + d")),
        Load(Value("v", f32), "value", parse(f"{keys * size}*b + {size}*j + e")),
        Matmul(Value("scores", f32), ("q", "k"), ("d",)),
        Reduce((Value("top", f32),), Reduction.MAX, ("scores",), ("j",)),
        Compute(Value("less", f32), Elementwise.SUB, ("scores", "top")),
        Compute(Value("weight", f32), Elementwise.EXP, ("less",)),
        Reduce((Value("total", f32),), Reduction.SUM, ("weight",), ("j",)),
        Matmul(Value("mixed", f32), ("weight", "v"), ("j",)),
        Compute(Value("result", f32), Elementwise.TRUEDIV, ("mixed", "total")),
        Store("out", parse(f"{queries * size}*b + {size}*i + e"), "result", ("b", "i", "e")),
    )
    return Program(
        "attention",
        tuple(Axis(name, Const(extent), reduction=name in "jd") for name, extent in extents.items()),
        (),
        (Buffer("query", f32), Buffer("key", f32), Buffer("value", f32), Buffer("out", f32, written=True)),
        body,
    )
