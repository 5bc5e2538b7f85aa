"""How long a launch would take on the device: a first, coarse model from public figures.

The larger of the time to move its bytes and the time to compute its matrix products; good for ranking programs, and a
lower bound. Layout, scratchpad and work division are not modelled yet.
"""

from spyre_backend.program.traffic import Traffic

# sustained bandwidth of device memory, and the extra cost of reading and writing at the same time
_BYTES_PER_SECOND = 150e9
_TURNAROUND_SECONDS_PER_BYTE = 0.00574e-9
# sustained 2-D matrix product: 1140 multiply-accumulates a nanosecond on each of 32 cores
_PRODUCTS_PER_SECOND = 1140e9 * 32


def launch_seconds(traffic: Traffic, multiply_accumulates: int) -> float:
    """Simulated seconds of one launch."""
    moved = traffic.loaded + traffic.stored
    turnaround = min(traffic.loaded, traffic.stored) * _TURNAROUND_SECONDS_PER_BYTE
    return max(moved / _BYTES_PER_SECOND + turnaround, multiply_accumulates / _PRODUCTS_PER_SECOND)
