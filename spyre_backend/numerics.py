"""Which numbers the device computes with: one choice for a process, made by `SPYRE_NUMERICS` in its environment.

`ieee`, the default, computes float16 as PyTorch does. `dl16` computes it in the device's own format, see
`simulator.dl16`, and keeps no int64 beyond 32 bits, since the device has none.
"""

from __future__ import annotations

import enum
import os
import warnings

VARIABLE = "SPYRE_NUMERICS"


class Numerics(enum.Enum):
    """The numbers of the device."""

    IEEE = "ieee"
    DL16 = "dl16"


class NarrowedIntegerWarning(UserWarning):
    """An int64 beyond 32 bits reached the device, which keeps the lower 32 bits of it; said once a process."""


def asked_for(value: str) -> Numerics:
    """The numbers that a value of the variable names; nothing is `ieee`. Raises `ValueError` for others."""
    try:
        return Numerics(value.strip() or "ieee")
    except ValueError:
        known = " or ".join(each.value for each in Numerics)
        raise ValueError(f"{VARIABLE}: no numerics {value!r}; there is {known}") from None


MODE = asked_for(os.environ.get(VARIABLE, ""))


def is_dl16() -> bool:
    """Whether the device of this process computes in DL16."""
    return MODE is Numerics.DL16


_said: list[str] = []


def warn_narrowed(where: str) -> None:
    """Warn that an int64 lost its upper bits, the first time that one does."""
    if not _said:
        _said.append(where)
        message = f"{where}: an int64 is beyond 32 bits, of which the spyre device keeps the lower ones (said once)"
        warnings.warn(message, NarrowedIntegerWarning, stacklevel=2)
