"""How it is said that what a user gave does not work: the entry, the key, and the place in the user's own code."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import NoReturn

from conformance.cases import UserFault
from models.own.declarations import Entry, shown


def fault(entry: Entry, key: str, said: str, error: BaseException | None = None) -> NoReturn:
    """Raise `UserFault` for a key of an entry, with the place in the user's own code where that is known."""
    at = place(error, entry.path) if error is not None else ""
    raise UserFault(f"{entry.where(key)}: `{key}`: {said}{at}") from error


def raised(error: BaseException) -> str:
    """`Class: message` in one line."""
    text = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place(error: BaseException, folders: tuple[str, ...]) -> str:
    """Where in the user's folders it arose: ` (net.py:12)`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if any(Path(f.filename).is_relative_to(folder) for folder in folders)]
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({shown(Path(error.filename))}:{error.lineno})"
    return f" ({shown(Path(own[-1].filename))}:{own[-1].lineno})" if own else ""
