"""Refusals."""

from __future__ import annotations

from spyre_backend.program import SpyreUnsupported


class SendnnUnsupported(SpyreUnsupported):
    """Something that this compiler lacks. The message names the operator, its dtypes and the place in the user's code.

    Nothing is left to the host unless `options={"host": True}` asks for it.
    """
