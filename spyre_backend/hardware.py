"""Public figures about the card, with the source of each: the one place that has them. Imports nothing of ours.

Sources are files of the public repository torch-spyre/torch-spyre (2026). Bandwidths and rates are fits of theirs to
what they measured; they give their error as 5 % (elementwise) to 40 % (batched products), so that a time computed from
them ranks programs and is a lower bound, not a prediction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Hardware:
    """Sizes in bytes, bandwidths in bytes a second, rates a second and core."""

    # docs/source/architecture/spyre_accelerator.md
    name: str = "IBM Spyre"
    cores: int = 32
    corelets: int = 2  # of one core
    scratchpad: int = 2 * MIB  # of one core
    span: int = 256 * MIB  # of memory that one core reaches in one launch
    # docs/source/architecture/dataflow_architecture.md
    memory: int = 112 * GIB  # 128 less 16 for error correction
    peak_bandwidth: float = 204.8e9  # of LPDDR5
    stick: int = 128  # the unit of transfer
    clock_rate: float = 1.3e9  # not published: what 128 bytes a cycle on the ring imply
    # docs/source/compiler/scratchpad_planning.md
    scratchpad_usable: int = 1550 * KIB
    # torch_spyre/_inductor/work_division.py: 98.3 TFLOP/s in fp16 by 32 cores; the vector rate is a fit
    peak_products: float = 1536e9
    vector_rate: float = 1760e6  # elements of an iteration space, whatever is computed for each
    # torch_spyre/_inductor/cost_model.py
    products: float = 1140e9  # multiply-accumulates, sustained
    bandwidth: float = 150e9  # all that is read or written in one direction
    turnaround: float = 0.00574e-9  # seconds for each byte of the smaller direction
    cross_row_bandwidth: float = 113e9  # a reduction across rows
    broadcast_bandwidth: float = 118e9
    restickify_bandwidth: float = 116e9  # a copy whose inner dimension is another than its source's

    def row_bandwidth(self, rows: int) -> float:
        """Of a kernel that only reduces rows, which falls with their number (cost_model.py)."""
        return min(self.bandwidth, 114e9 + 61e9 * math.exp(-rows / 3700))


SPYRE = Hardware()
