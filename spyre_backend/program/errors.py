"""Errors that say what the compiler or the simulator refuses to do."""


class SpyreUnsupported(NotImplementedError):
    """Something that this backend has no implementation for, named in the message.

    Raised instead of computing a guess: the caller sees which operation, mode or dtype is missing.
    """


class ProgramError(ValueError):
    """A tile program that breaks a rule of the IR: an undeclared name, a wrong dtype, a malformed text."""
