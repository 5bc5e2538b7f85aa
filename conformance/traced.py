"""Calls that were traced out of models: each signature once, with its number and the models that make the call.

The records of a run have them packed, sample by sample (`Record.traced`). When a run is merged they are written without
repetition into `traced.parquet` beside its records, and such files can be merged further. Pure: never imports torch.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from conformance import signatures
from conformance.records import Record

MODEL_KINDS = frozenset({"model", "decode"})
"""Kinds of case whose subjects are models; what ops and parts of models call is not of interest here."""

FILE = "traced.parquet"
VARIABLE = "CONFORMANCE_TRACED"
COMMAND = "conformance sweep models --backend trace --tier nightly --max-samples 1"
"""What makes a run with traced calls."""

_ROWS = {"op": "VARCHAR", "dtype": "VARCHAR", "number": "UBIGINT", "signature": "VARCHAR", "users": "VARCHAR[]"}


class TracedError(ValueError):
    """There is no file of traced calls, or it cannot be read; one line for the user."""


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """One signature. `number` is unique within op and dtype, and depends on nothing else that was traced."""

    op: str  # aten.addmm.default
    dtype: str
    number: int
    signature: str
    users: tuple[str, ...]  # sorted; see `user`

    @property
    def models(self) -> tuple[str, ...]:
        """The subjects that make the call, in whatever kind and direction."""
        return tuple(sorted({subject_of(user) for user in self.users}))


def user(record: Record) -> str:
    """`kind:subject:direction` of the sample that made a call: `model:llama.causal-lm:fwd`."""
    return f"{record.kind}:{record.subject}:{record.direction}"


def subject_of(user: str) -> str:
    """The subject of a user."""
    return user.split(":")[1]


def collect(records: Iterable[Record]) -> list[Traced]:
    """All calls of the models among the records, each once. Raises `SignatureError` where a record's cannot be read."""
    users: dict[str, set[str]] = defaultdict(set)
    for record in records:
        who = user(record)
        for text in signatures.unpack(record.traced) if record.kind in MODEL_KINDS else ():
            users[text].add(who)
    return _numbered(users)


def merged(parts: Iterable[Iterable[Traced]]) -> list[Traced]:
    """The calls of several files, each once, with the users of all."""
    users: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        for each in part:
            users[each.signature].update(each.users)
    return _numbered(users)


def _numbered(users: Mapping[str, Iterable[str]]) -> list[Traced]:
    """By op, dtype and number. Two signatures of one op and dtype with one number are told apart by their texts: the
    later one gets another number, so only such a pair depends on what else was traced."""
    groups: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for text in sorted(users):
        signature = signatures.decode(text)
        taken = groups[signature.op, signature.dtype]
        attempt = 0
        while (number := signatures.number(text, attempt)) in taken:
            attempt += 1
        taken[number] = text
    return [
        Traced(op=op, dtype=dtype, number=number, signature=text, users=tuple(sorted(users[text])))
        for (op, dtype), taken in sorted(groups.items())
        for number, text in sorted(taken.items())
    ]


# --- files ------------------------------------------------------------------------------------------------------------


def write(path: Path, traced: Iterable[Traced]) -> None:
    """Replace the file in one step."""
    import duckdb  # here: half of what `--help` may take

    path.parent.mkdir(parents=True, exist_ok=True)
    columns = ", ".join(f"{name}: '{kind}'" for name, kind in _ROWS.items())
    with tempfile.TemporaryDirectory(prefix=".traced-", dir=path.parent) as scratch:
        lines, target = Path(scratch) / "traced.jsonl", Path(scratch) / FILE
        lines.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in traced))
        with duckdb.connect(":memory:") as connection:
            source = f"read_json({_quoted(lines)}, format='newline_delimited', columns={{{columns}}})"
            options = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 19"
            connection.execute(f"COPY (SELECT * FROM {source}) TO {_quoted(target)} ({options})")
        target.replace(path)


def read(path: Path | str) -> list[Traced]:
    """The calls of a file, by op, dtype and number. Raises `TracedError`."""
    import duckdb

    with duckdb.connect(":memory:") as connection:
        try:
            found = connection.execute(f"SELECT {', '.join(_ROWS)} FROM read_parquet({_quoted(path)})").fetchall()
        except duckdb.Error as error:
            reason = str(error).strip().splitlines()[0]
            raise TracedError(f"{path}: not a file of traced calls: {reason}") from None
    rows = (dict(zip(_ROWS, row, strict=True)) for row in found)
    return sorted(
        (Traced(**{**row, "users": tuple(row["users"])}) for row in rows), key=lambda t: (t.op, t.dtype, t.number)
    )


def _quoted(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def locate(given: str | None = None) -> Path:
    """The file of traced calls: the one given (a file or a run), else $CONFORMANCE_TRACED, else of the newest run
    that has one.

    Raises `TracedError` that says which command makes one, and `StoreError` for a run that is not there.
    """
    from conformance import store

    wanted = given or os.environ.get(VARIABLE)
    if wanted:
        path = Path(wanted)
        if path.is_file():
            return path
        path = store.resolve(wanted) / FILE
        if path.is_file():
            return path
        raise TracedError(f"the run {path.parent} has traced no model; `{COMMAND}` makes one that has")
    for run in reversed(store.runs()):
        if (run / FILE).is_file():
            return run / FILE
    raise TracedError(
        f"no run in {store.runs_root()}/ has traced models; `{COMMAND}` makes one (or name a file: --traced FILE)"
    )
