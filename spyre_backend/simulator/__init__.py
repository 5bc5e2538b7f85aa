"""Runs tile programs on the host, vectorised over the whole iteration space, and counts what they do.

Zero-copy: device memory is host memory here, and a load is a strided view of it where the access allows.
"""

from spyre_backend.simulator.counters import Observation, observe
from spyre_backend.simulator.kernel import Kernel, load

__all__ = ["Kernel", "Observation", "load", "observe"]
