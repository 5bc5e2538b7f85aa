"""A slow way to run programs, which proves what the fast one takes for granted.

`SPYRE_CHECK=division` in the environment runs the share of each core alone, one after the other, and proves that no two
write one element and that together they write what the program does. What reads across shares gives another result.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from spyre_backend.program import ProgramError
from spyre_backend.program.affine import Affine
from spyre_backend.simulator import memory
from spyre_backend.simulator.binding import BoundProgram

CHECKS = frozenset({"division"})


def _asked_for(value: str) -> frozenset[str]:
    """The checks that the variable names, apart by commas. Raises `ValueError` for one that there is not."""
    asked = frozenset(filter(None, (part.strip() for part in value.split(","))))
    if unknown := asked - CHECKS:
        raise ValueError(f"SPYRE_CHECK: no check {', '.join(sorted(unknown))}; there is {', '.join(sorted(CHECKS))}")
    return asked


DIVISION = "division" in _asked_for(os.environ.get("SPYRE_CHECK", ""))


class DivisionError(ProgramError):
    """The shares of two cores overlap, or leave something out."""


def run_divided(bound: BoundProgram, buffers: Mapping[str, torch.Tensor]) -> None:
    """Run a launch core by core. Raises DivisionError where the shares are not disjoint or not complete."""
    parts = [BoundProgram(bound.program, bound.symbols, share) for share in bound.cost.division.shares()]
    if len(parts) == 1:
        bound.run(buffers)
        return
    for buffer in {buffer for buffer, _ in bound.stores()}:
        written, wanted = (_writes(each, buffer, buffers[buffer]) for each in (parts, [bound]))
        if bool((written > 1).any()):
            raise DivisionError(f"{bound.program.name}: two cores write one element of {buffer}: {bound.cost.division}")
        if not torch.equal(written, wanted.clamp(max=1)):
            raise DivisionError(f"{bound.program.name}: not all of {buffer} is written: {bound.cost.division}")
    for part in parts:
        part.run(buffers)


def _writes(parts: list[BoundProgram], buffer: str, target: torch.Tensor) -> torch.Tensor:
    """How many of the parts write each element of the storage of `target`."""
    count = torch.zeros(memory.storage_elements(target), dtype=torch.int32)
    for part in parts:
        one = torch.zeros_like(count)
        for name, access in part.stores():
            if name == buffer:
                shaped = one.as_strided(target.shape, target.stride(), target.storage_offset())
                memory.strided_view(shaped, _forwards(access, part.space), part.space).fill_(1)
        count += one
    return count


def _forwards(access: Affine, space: memory.Space) -> Affine:
    """An access to the same elements in which no axis runs backwards."""
    low, _ = access.bounds(space.extents)
    return Affine(low, {axis: abs(step) for axis, step in access.coefficients.items()})
