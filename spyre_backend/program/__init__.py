"""The tile program: a small, closed, serialisable IR for kernels. Needs neither torch nor a compiler."""

from spyre_backend.program.dtypes import DType
from spyre_backend.program.errors import ProgramError, SpyreUnsupported
from spyre_backend.program.ir import Program
from spyre_backend.program.serialize import dumps, loads
from spyre_backend.program.text import to_text_form
from spyre_backend.program.traffic import accesses, iteration_space, traffic
from spyre_backend.program.verify import verify

__all__ = [
    "DType",
    "Program",
    "ProgramError",
    "SpyreUnsupported",
    "accesses",
    "dumps",
    "iteration_space",
    "loads",
    "to_text_form",
    "traffic",
    "verify",
]
