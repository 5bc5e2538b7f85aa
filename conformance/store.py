"""Results on disk: JSON lines while a run goes on, Parquet and a manifest when it is done, DuckDB to ask.

A run is a directory:

- `worker-<id>.jsonl`: one event a line, each appended by a single `write` to a file opened with O_APPEND. A sample is
  announced before it starts, so that a dead process names it.
- `records.parquet`: the merged records, one row a sample.
- `traced.parquet`: the calls that were traced out of its models, where it has any; see `traced`.
- `manifest.json`: see `Manifest`.

Reading falls back from Parquet to the JSON lines wherever the lines are newer, so that a run cut short can be read.
Where a sample has several records (a resumed run), the last one that is not `infra` wins; else the last one.
Pure: never imports torch.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from conformance import traced
from conformance.outcomes import Outcome
from conformance.records import SCHEMA_VERSION, Manifest, Record

RECORDS = "records.parquet"
MANIFEST = "manifest.json"
WORKER = "worker-*.jsonl"
RUNS_VARIABLE = "CONFORMANCE_RUNS"
_LONGEST_LINE = 64 * 2**20  # bytes; a record with a long traceback is some KiB, DuckDB's own limit is 16 MiB


class StoreError(ValueError):
    """A run that is not there, is ambiguous or cannot be read; the message is one line for the user."""


class Started(msgspec.Struct, frozen=True, tag_field="event", tag="start"):
    """A sample is about to run."""

    sample: str
    at: float  # seconds since the epoch
    worker: str = ""


class CaseDone(msgspec.Struct, frozen=True, tag_field="event", tag="case", omit_defaults=True):
    """A case has ended; with a `reason` it was skipped as a whole."""

    case: str
    samples: int = 0  # samples that it turned out to have
    reason: str = ""


class _Recorded(msgspec.Struct, frozen=True, tag_field="event", tag="record"):
    record: msgspec.Raw


class Table(NamedTuple):
    """The answer to a query."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


class Log(msgspec.Struct):
    """What the JSON lines of a run say."""

    records: list[Record]  # one a sample, in the order in which they were made
    started: dict[str, Started]  # samples announced
    cases: dict[str, CaseDone]
    torn: int = 0  # lines cut short by a dying process

    @property
    def in_flight(self) -> list[str]:
        """Samples that were announced and never recorded."""
        recorded = {record.sample for record in self.records}
        return [sample for sample in self.started if sample not in recorded]


# --- writing ---------------------------------------------------------------------------------------------------------


def runs_root() -> Path:
    """`$CONFORMANCE_RUNS`, else `runs` in the current directory."""
    return Path(os.environ.get(RUNS_VARIABLE) or "runs")


def new_run(backend: str, tier: str, *, root: Path | None = None, now: float | None = None) -> Path:
    """Make the directory of a new run; its name (UTC time, backend, tier) sorts by time and is the run's id."""
    root = runs_root() if root is None else root
    root.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    name = re.sub(r"[^\w.-]+", "-", f"{stamp}-{backend}-{tier}").strip("-")
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        path = root / (name + suffix)
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise StoreError(f"{root}: too many runs named {name}")


class RunWriter:
    """Appends the events of one worker. Safe to use from several processes: a line is one `write`."""

    def __init__(self, run_dir: Path | str, worker: str) -> None:
        self.worker = worker
        self.path = Path(run_dir) / f"worker-{re.sub(r'[^A-Za-z0-9_.-]+', '-', worker)}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._write(b"\n")  # a torn line of an earlier process must not swallow our first one

    def start(self, sample: str) -> None:
        """Say that the sample is about to run."""
        self._write(msgspec.json.encode(Started(sample, time.time(), self.worker)) + b"\n")

    def record(self, record: Record) -> None:
        """Append the sample's result."""
        self._write(b'{"event":"record","record":' + encode(record) + b"}\n")

    def case_done(self, case: str, samples: int = 0, reason: str = "") -> None:
        """Say how many samples the case turned out to have, or why it was skipped as a whole."""
        self._write(msgspec.json.encode(CaseDone(str(case), samples, reason)) + b"\n")

    def _write(self, line: bytes) -> None:
        written = os.write(self._fd, line)
        if written != len(line):
            raise OSError(f"{self.path}: wrote {written} of {len(line)} bytes; is the disk full?")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_manifest(run_dir: Path | str, manifest: Manifest) -> None:
    """Replace the run's manifest in one step."""
    _replace(Path(run_dir) / MANIFEST, json.dumps(_finite(msgspec.to_builtins(manifest)), indent=1).encode() + b"\n")


def merge(run_dir: Path | str, manifest: Manifest | None = None) -> Manifest:
    """Write `records.parquet` and `manifest.json` from the JSON lines; doing it twice changes nothing. Calls that the
    records have traced go into `traced.parquet`, and not into the records.

    `manifest` replaces the one on disk; without either, one is made from the records. Returns what was written.
    """
    run_dir = Path(run_dir)
    manifest = manifest or read_manifest(run_dir)
    if any(run_dir.glob(WORKER)):
        log = read_log(run_dir)
        calls = traced.collect(log.records)
        if calls:
            traced.write(run_dir / traced.FILE, calls)
        records = [msgspec.structs.replace(record, traced="") for record in log.records]
        with tempfile.TemporaryDirectory(prefix=".merge-", dir=run_dir) as scratch:
            target = Path(scratch) / RECORDS
            with _connect() as connection:
                _create_view(connection, "records", records, Path(scratch) / "records.jsonl")
                connection.execute(f"COPY (SELECT * FROM records) TO {_quoted(target)} (FORMAT parquet)")
            target.replace(run_dir / RECORDS)
        manifest = msgspec.structs.replace(manifest, records=len(log.records), torn_lines=log.torn)
    write_manifest(run_dir, manifest)
    return manifest


# --- reading ---------------------------------------------------------------------------------------------------------


def resolve(run: str | Path, root: Path | None = None) -> Path:
    """The directory of a run given as a path, an id, a unique prefix of one, or `latest`.

    Raises `StoreError` that lists what there is.
    """
    root = runs_root() if root is None else root
    given = Path(run)
    if _is_run(given):
        return given
    known = runs(root)
    if str(run) == "latest":
        if not known:
            raise StoreError(f"there is no run in {root}/ yet; set ${RUNS_VARIABLE} or give a path")
        return known[-1]
    matches = [path for path in known if path.name == str(run)] or [p for p in known if p.name.startswith(str(run))]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise StoreError(f"run {str(run)!r} is ambiguous: {', '.join(p.name for p in matches[:5])}")
    there = ", ".join(p.name for p in known[-3:]) or "none"
    raise StoreError(f"no run {str(run)!r}: give a directory, or an id or `latest` of those in {root}/ ({there})")


def runs(root: Path | None = None) -> list[Path]:
    """All runs in `root`, oldest first by the start in their manifest."""
    root = runs_root() if root is None else root
    if not root.is_dir():
        return []
    return sorted((p for p in root.iterdir() if _is_run(p)), key=lambda p: (read_manifest(p).started, p.name))


def _is_run(path: Path) -> bool:
    return path.is_dir() and (
        (path / MANIFEST).is_file() or (path / RECORDS).is_file() or next(path.glob(WORKER), None) is not None
    )


def read_manifest(run_dir: Path | str) -> Manifest:
    """The run's manifest; one made from what is there if the run was cut short before it wrote its own."""
    run_dir = Path(run_dir)
    path = run_dir / MANIFEST
    if path.is_file():
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest, strict=False)
        except msgspec.DecodeError as error:
            raise StoreError(f"{path}: {error}") from None
        _check_version(path, manifest.schema_version)
        return manifest
    if not run_dir.is_dir():
        raise StoreError(f"{run_dir} is not the directory of a run")
    times = [p.stat().st_mtime for p in run_dir.iterdir()] or [run_dir.stat().st_mtime]
    return Manifest(run=run_dir.resolve().name, started=min(times))


def read(run: str | Path) -> list[Record]:
    """The records of a run, one a sample; from Parquet, or from the JSON lines where these are newer."""
    run_dir = resolve(run)
    if not _parquet_is_current(run_dir):
        return read_log(run_dir).records
    with _connect() as connection:
        try:
            answer = connection.execute(f"SELECT * FROM read_parquet({_quoted(run_dir / RECORDS)})")
            columns = [column[0] for column in answer.description]
            rows = answer.fetchall()
        except _duckdb_error() as error:
            raise StoreError(f"{run_dir / RECORDS}: {_first_line(error)}") from None
    return [
        _upgraded({k: v for k, v in zip(columns, row, strict=True) if v is not None}, run_dir / RECORDS) for row in rows
    ]


def read_log(run_dir: Path | str) -> Log:
    """What the JSON lines of a run say. Lines that a dying process cut short are counted and left out."""
    run_dir = Path(run_dir)
    started: dict[str, Started] = {}
    cases: dict[str, CaseDone] = {}
    found: list[Record] = []
    torn = 0
    decoder = msgspec.json.Decoder(Started | CaseDone | _Recorded)
    for path in sorted(run_dir.glob(WORKER)):
        for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
            if not line:
                continue
            try:
                event = decoder.decode(line)
            except msgspec.ValidationError as error:
                raise StoreError(f"{path}:{number}: {error}") from None
            except (msgspec.DecodeError, UnicodeDecodeError):
                torn += 1
                continue
            if isinstance(event, Started):
                started[event.sample] = event
            elif isinstance(event, CaseDone):
                cases[event.case] = event
            else:
                found.append(_upgraded(msgspec.json.decode(event.record), path, number))
    return Log(list(_one_per_sample(found)), started, cases, torn)


def done(run_dir: Path | str) -> set[str]:
    """Samples that a resumed run need not repeat: all that are recorded, but for `infra`."""
    return {record.sample for record in read(run_dir) if record.outcome is not Outcome.INFRA}


def in_flight(run_dir: Path | str) -> list[str]:
    """Samples that were announced and never recorded."""
    return read_log(run_dir).in_flight


def query(run: str | Path | Sequence[str | Path], sql: str) -> Table:
    """Ask one run or several by SQL. The view `records` has a column for each field of `Record`, and `run`, the id.

    Maps are DuckDB maps (`fallbacks['aten::sort']`), lists of breaks and recompiles are lists of structs (`unnest`).
    """
    given = [run] if isinstance(run, str | Path) else list(run)
    with tempfile.TemporaryDirectory(prefix="conformance-") as scratch, _connect() as connection:
        parts = []
        for position, each in enumerate(given):
            run_dir = resolve(each)
            name = f"run_{position}"
            if _parquet_is_current(run_dir):
                source = f"SELECT * FROM read_parquet({_quoted(run_dir / RECORDS)})"
                connection.execute(f"CREATE VIEW {name} AS {source}")
            else:
                _create_view(connection, name, read_log(run_dir).records, Path(scratch) / f"{name}.jsonl")
            parts.append(f"SELECT {_quoted(run_dir.resolve().name)} AS run, * FROM {name}")
        try:
            connection.execute("CREATE VIEW records AS " + " UNION ALL BY NAME ".join(parts))
            answer = connection.execute(sql)
            return Table([column[0] for column in answer.description or []], answer.fetchall())
        except _duckdb_error() as error:
            raise StoreError(f"query: {_first_line(error)}") from None


# --- representation --------------------------------------------------------------------------------------------------


def encode(record: Record) -> bytes:
    """One record as JSON. Infinities and NaN are written as strings, which JSON has and numbers of it have not."""
    return msgspec.json.encode(_finite(msgspec.to_builtins(record)))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _upgraded(fields: dict[str, Any], path: Path, number: int | None = None) -> Record:
    """A record written by this or an older version: unknown fields are dropped, missing ones get their default."""
    _check_version(path, fields.get("schema_version", 1))
    fields["schema_version"] = SCHEMA_VERSION
    try:
        return msgspec.convert(fields, Record, strict=False)
    except msgspec.ValidationError as error:
        raise StoreError(f"{path}{f':{number}' if number else ''}: {error}") from None


def _check_version(path: Path, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path}: written with schema version {version}, this installation reads up to {SCHEMA_VERSION}; update it"
        )


def _one_per_sample(records: Iterable[Record]) -> Iterator[Record]:
    kept: dict[str, Record] = {}
    for record in sorted(records, key=lambda r: r.started or 0.0):  # stable: file order where there is no time
        earlier = kept.get(record.sample)
        if earlier is None or record.outcome is not Outcome.INFRA or earlier.outcome is Outcome.INFRA:
            kept[record.sample] = record
    return iter(kept.values())


def _parquet_is_current(run_dir: Path) -> bool:
    parquet = run_dir / RECORDS
    if not parquet.is_file():
        return False
    made = parquet.stat().st_mtime_ns
    return all(path.stat().st_mtime_ns <= made for path in run_dir.glob(WORKER))


def _replace(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(content)
    scratch.replace(path)


# --- DuckDB ----------------------------------------------------------------------------------------------------------


def sql_schema() -> dict[str, str]:
    """Column -> DuckDB type, taken from `Record`, so that a new field is a new column."""
    info = msgspec.inspect.type_info(Record)
    assert isinstance(info, msgspec.inspect.StructType)
    return {field.encode_name: _sql_type(field.type) for field in info.fields}


def _sql_type(info: msgspec.inspect.Type) -> str:
    inspect = msgspec.inspect
    match info:
        case inspect.UnionType():
            (inner,) = (part for part in info.types if not isinstance(part, inspect.NoneType))
            return _sql_type(inner)
        case inspect.StrType() | inspect.EnumType():
            return "VARCHAR"
        case inspect.BoolType():
            return "BOOLEAN"
        case inspect.IntType():
            return "BIGINT"
        case inspect.FloatType():
            return "DOUBLE"
        case inspect.DictType():
            return f"MAP({_sql_type(info.key_type)}, {_sql_type(info.value_type)})"
        case inspect.ListType():
            return f"{_sql_type(info.item_type)}[]"
        case inspect.StructType():
            return f"STRUCT({', '.join(f'{_name(f.name)} {_sql_type(f.type)}' for f in info.fields)})"
    raise TypeError(f"{info} has no column type")


def _create_view(connection: Any, name: str, records: Iterable[Record], scratch: Path) -> None:
    """A view of records that are not in Parquet yet, by way of a JSON file."""
    fields = Record.__struct_fields__
    with scratch.open("wb") as file:
        for record in records:
            row = {field: getattr(record, field) for field in fields}
            file.write(msgspec.json.encode(_finite(msgspec.to_builtins(row))) + b"\n")
    columns = ", ".join(f"{_name(column)}: {_quoted(kind)}" for column, kind in sql_schema().items())
    source = f"{_quoted(scratch)}, format='newline_delimited', maximum_object_size={_LONGEST_LINE}"
    connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_json({source}, columns={{{columns}}})")


def _connect() -> Any:
    import duckdb  # here: half of what `--help` may take

    return duckdb.connect(":memory:")


def _duckdb_error() -> type[Exception]:
    import duckdb

    return duckdb.Error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _quoted(value: object) -> str:
    return "'" + str(value).replace("'", "''") + "'"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
