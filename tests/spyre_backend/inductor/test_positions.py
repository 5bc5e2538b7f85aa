"""Positions that a kernel computes: Inductor makes index expressions of them, and the kernel must take every one.

Each way to compute a position meets each place where upstream rewrites indices; on the CPU, upstream takes other paths
through several of these lowerings, so that its own tests there do not stand in for these.
"""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

Tensor = torch.Tensor
SIZE = 6  # positions 0..5; what is computed of them stays within what `PLACES` can look up

# of a position, another one
POSITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda p: p,
    "shifted": lambda p: p + 1,
    "reversed": lambda p: SIZE - 1 - p,
    "scaled": lambda p: 2 * p,
    "clamped below": lambda p: (p - 2).clamp(min=0),
    "clamped above": lambda p: (p + 1).clamp(max=4),
    "clamped": lambda p: (2 * p - 3).clamp(0, 5),
    "larger of two": lambda p: torch.maximum(p, 2 * p - 4),
    "smaller of two": lambda p: torch.minimum(p + 1, 8 - p),
    "clamped twice": lambda p: ((p + 3).clamp(max=7) - 2).clamp(min=2),
    "divided": lambda p: (p + 1) // 2,
    "remainder": lambda p: (p + 2) % 4,
    "distance": lambda p: (p - 3).abs(),
    "square": lambda p: (p - 2).square(),
    "chosen": lambda p: torch.where(p < 3, p, p - 3),
    "from the end": lambda p: p - SIZE,
}

Place = Callable[[Tensor, Tensor, Tensor], Tensor]  # of values to look up, positions, and other positions

# what is made of them in the same kernel
PLACES: dict[str, Place] = {
    "concatenated": lambda table, p, q: torch.cat([p - 1, q, p]) * 2,
    "looked up after concatenation": lambda table, p, q: table[torch.cat([q, p])].sin(),
    "looked up before concatenation": lambda table, p, q: torch.cat([table[p], table[q]]).sin(),
    "concatenated twice": lambda table, p, q: torch.cat([torch.cat([p, q]) + 1, p]) * 2,
    "concatenated views": lambda table, p, q: torch.cat([p.view(2, -1).t(), q[:4].view(-1, 2)]) * 2,
    "concatenated columns": lambda table, p, q: torch.cat([p[:, None] - q, q[:, None] * p], 1) * 2,
    "concatenated and used": lambda table, p, q: torch.cat([p, q]) * torch.cat([q, p]) + p.sum() + table[q].sum(),
    "concatenated as another dtype": lambda table, p, q: torch.cat([p, table]) * 2,
    "stacked": lambda table, p, q: torch.stack([p, q], -1) * 2,
    "padded": lambda table, p, q: F.pad(p, (0, 3)) + 1,
    "padded in front": lambda table, p, q: F.pad(p[None], (2, 1, 1, 0)) + 1,
    "padded by reflection": lambda table, p, q: F.pad(p[None].float(), (2, 1), mode="reflect") + 1,
    "rolled": lambda table, p, q: torch.roll(table[p], 2) + torch.roll(q, -1),
    "flipped": lambda table, p, q: table[p].flip(0) + q.flip(0),
    "sliced": lambda table, p, q: torch.cat([p[1:-1:2], q[::3]]) + 1,
    "repeated": lambda table, p, q: table[p.repeat_interleave(2)] + p.repeat(2),
    "unfolded": lambda table, p, q: table[p].unfold(0, 3, 1).sum(1) + q.unfold(0, 3, 1)[:, 0],
    "reduced": lambda table, p, q: table[p[:, None].maximum(q)].sum(1),
    "scattered": lambda table, p, q: torch.zeros_like(table).index_put((p,), table[q], accumulate=True),
}


SYMBOLIC = ("concatenated", "looked up after concatenation", "padded", "stacked", "sliced")


def _check(on_device, place: str, *, dynamic: bool) -> None:
    def fn(table: Tensor, like: Tensor) -> dict[str, Tensor]:
        positions = torch.arange(like.shape[0], device=like.device)
        others = (positions + 1).clamp(max=4)
        return {name: PLACES[place](table, of(positions), others) for name, of in POSITIONS.items()}

    table = torch.randn(12, generator=torch.Generator().manual_seed(0))
    on_device.check(fn, table, torch.empty(SIZE), dynamic=dynamic)


@pytest.mark.parametrize("place", PLACES)
def test_a_position_is_right_wherever_it_is_computed(place: str, on_device) -> None:
    _check(on_device, place, dynamic=False)


@pytest.mark.parametrize("place", SYMBOLIC)
def test_a_position_among_a_symbolic_number_of_them(place: str, on_device) -> None:
    _check(on_device, place, dynamic=True)


def test_a_position_may_hold_a_function_of_a_size_that_programs_lack(on_device) -> None:
    def first_ones_backwards(x: torch.Tensor) -> torch.Tensor:
        return x[: int(math.log2(x.shape[0]))].flip(0) + 1

    for rows in (16, 40):
        on_device.native(first_ones_backwards, torch.randn(rows, 5), dynamic=True)
