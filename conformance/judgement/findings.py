"""What a judge can find. Pure data: imports no torch."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from conformance.outcomes import TOO_LOOSE


class Check(StrEnum):
    """Kind of a finding; the first part of a wrong result's fingerprint."""

    VALUES = "values"  # numbers beyond the tolerance
    SPECIAL = "special values"  # NaN, infinity, sign of zero, subnormals
    LOOSE = TOO_LOOSE  # within the bound, but the bound could not have caught a wrong answer
    DTYPE = "dtype"
    SHAPE = "shape"
    STRIDES = "strides"
    DEVICE = "device"
    LAYOUT = "layout"
    TYPE = "type"  # of a Python value or tensor subclass
    REQUIRES_GRAD = "requires_grad"
    ALIAS = "aliasing"
    MUTATION = "mutation"  # an input was changed that should not be, or kept that should have changed
    STRUCTURE = "structure"  # containers and number of results
    PROPERTY = "property"  # the sample's own check, or the distribution of random numbers
    GRADIENT = "gradient"  # one is missing, or one too many
    EXCEPTION = "exception"  # eager raises and the backend does not
    UNCOMPARABLE = "uncomparable"  # a result that cannot be brought back
    NOTHING = "nothing compared"


class Finding(msgspec.Struct, frozen=True):
    """One difference. `error_class` is the same on every machine for the same cause, the message has the numbers."""

    check: Check
    where: str  # path of the value: output[0], args[1] after the call, kwargs['bias'].grad, replay[1] output
    message: str  # one sentence
    error_class: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.message}"


class Judgement(msgspec.Struct, frozen=True):
    """The verdict on one sample.

    `error` is the largest error in units of the last place of the device's format, `slack` the largest error / allowed,
    `loosest` the largest allowed / size of the result; None where no floating values were compared.
    """

    ok: bool
    findings: tuple[Finding, ...]
    compared: int  # results (tensors and plain values) compared with the reference
    error: float | None = None
    slack: float | None = None
    loosest: float | None = None
    notes: tuple[str, ...] = ()
