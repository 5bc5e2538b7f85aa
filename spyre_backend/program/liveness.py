"""Which instructions of a body matter."""

from collections.abc import Iterable

from spyre_backend.program.expr import names
from spyre_backend.program.ir import Instruction, expressions, operands, results


def live(body: Iterable[Instruction]) -> list[Instruction]:
    """`body` without the instructions whose results nobody uses. Stores and checks have none, and stay."""
    needed: set[str] = set()
    kept = []
    for instruction in reversed(list(body)):
        defined = results(instruction)
        if defined and not any(value.name in needed for value in defined):
            continue
        needed.update(operands(instruction))
        needed.update(*(names(expression) for expression in expressions(instruction)))
        kept.append(instruction)
    return kept[::-1]
