"""Programs as JSON text and back. Index expressions are stored in their printed form, opcodes by mnemonic."""

import hashlib
from typing import Any

import msgspec

from spyre_backend.program import expr
from spyre_backend.program.errors import ProgramError
from spyre_backend.program.ir import Program


def dumps(program: Program) -> str:
    """`program` as one line of JSON."""
    return _ENCODER.encode(program).decode()


def loads(text: str | bytes) -> Program:
    """The program that `dumps` wrote. Raises ProgramError for a malformed text or another format version."""
    try:
        program = _DECODER.decode(text)
    except (msgspec.MsgspecError, KeyError) as error:
        raise ProgramError(f"not a tile program: {error}") from error
    if program.format != Program.FORMAT:
        raise ProgramError(f"tile program of format {program.format}; this reader knows format {Program.FORMAT}")
    return program


def digest(program: Program) -> str:
    """16 hex digits that depend on everything but the program's name."""
    anonymous = msgspec.structs.replace(program, name="")
    return hashlib.sha256(_ENCODER.encode(anonymous)).hexdigest()[:16]


def _encode(value: Any) -> Any:
    if isinstance(value, expr.Expr):
        return expr.to_text(value)
    raise TypeError(f"cannot serialise {type(value).__name__}")


def _decode(kind: type, value: Any) -> Any:
    if kind is expr.Expr:
        return expr.parse(value)
    raise TypeError(f"cannot read {kind.__name__}")


_ENCODER = msgspec.json.Encoder(enc_hook=_encode)
_DECODER = msgspec.json.Decoder(Program, dec_hook=_decode)
