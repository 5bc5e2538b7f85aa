"""Exceptions whose message is one line for the user."""

from __future__ import annotations

MISTAKE = 2  # exit status


class Mistake(ValueError):
    """What the user asked for cannot be done; the message says what would be right."""


def kinds() -> tuple[type[Exception], ...]:
    """All of them, by whatever module they are raised."""
    from conformance.backends.protocol import BackendError
    from conformance.expectations import ExpectationError
    from conformance.repro import CannotRepro
    from conformance.rerun import NotThere
    from conformance.settings import SettingsError
    from conformance.signatures import SignatureError
    from conformance.store import StoreError
    from conformance.suites import SuiteNotFound
    from conformance.traced import TracedError

    return (
        BackendError,
        CannotRepro,
        ExpectationError,
        Mistake,
        NotThere,
        SettingsError,
        SignatureError,
        StoreError,
        SuiteNotFound,
        TracedError,
    )


def needs(condition: bool, message: str) -> None:
    """Raise `Mistake` unless the condition holds."""
    if not condition:
        raise Mistake(message)
