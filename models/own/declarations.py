"""Files of --models, read and checked without torch: what a user says about models of their own.

A mistake is one line that names the file, the line and the key, and says what would be right.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from conformance.cases import Tier
from models.subjects import Sizes
from models.zoo.architectures import TASKS

MAX_PARAMETERS = 100_000_000
"""Of a model whose entry says nothing. A sample keeps several copies, one in float64: beyond this, --memory-limit
hardly ever suffices as it is."""

DTYPES = ("float64", "float32", "float16", "bfloat16")
DIMENSIONS = ("batch", "length")
SIZES: Mapping[str, bool] = {each.name: isinstance(each.default, tuple) for each in fields(Sizes)}
"""Key of `sizes` -> whether it is a list."""


class DeclarationError(ValueError):
    """A file that cannot be used; the message names file, line and key, and says what would be right."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One `[[model]]`. Exactly one of `config`, `checkpoint`, `factory` and `hub` is not empty. Paths are absolute."""

    name: str
    config: str = ""  # a config.json
    checkpoint: str = ""  # a folder that save_pretrained wrote
    factory: str = ""  # package.module:function or /path/to/file.py:function
    hub: str = ""  # org/name
    revision: str = ""  # of the hub
    task: str = ""
    dynamic: dict[str, dict[str, int]] = {}  # input -> batch or length -> dimension
    sizes: dict[str, Any] = {}  # as of `Sizes`
    tolerance: dict[str, float] = {}  # ulps, atol
    priority: float = 1.0
    tier: Tier = Tier.SMOKE
    dtypes: tuple[str, ...] = ()
    trust_remote_code: bool = False
    seed: int = 0
    labels: str = ""
    max_parameters: int = MAX_PARAMETERS
    file: str = ""
    lines: dict[str, int] = {}  # key -> line, from 1; that of the entry itself under the empty key
    path: tuple[str, ...] = ()  # folders that come first where modules of the user are looked for

    @property
    def source(self) -> str:
        """Which of the four kinds it is."""
        return next(kind for kind in SOURCES if getattr(self, kind))

    def where(self, key: str = "") -> str:
        """File and line of the entry or of one of its keys, for messages."""
        return f"{shown(Path(self.file))}:{self.lines.get(key, self.lines.get('', 1))}"

    def all_sizes(self, default: Sizes) -> Sizes:
        """`default` with what the entry says."""
        given = {key: tuple(value) if SIZES[key] else value for key, value in self.sizes.items()}
        return Sizes(**{**vars(default), **given})


SOURCES = ("config", "checkpoint", "factory", "hub")
PRETRAINED = frozenset({"config", "checkpoint", "hub"})


class Key(NamedTuple):
    """What a key of an entry may be."""

    fits: Callable[[Any], bool]
    what: str  # said after "must be"
    of: frozenset[str] = frozenset(SOURCES)  # kinds of entries that may have it


def _text(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= least


def _is_number(value: Any, least: float) -> bool:
    return type(value) in (int, float) and least <= value < float("inf")


def _table(fits: Callable[[str, Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and bool(value) and all(fits(k, v) for k, v in value.items())


def _is_size(key: str, value: Any) -> bool:
    one = _whole(1)
    if SIZES.get(key, False):
        return isinstance(value, list) and bool(value) and all(map(one, value))
    return key in SIZES and one(value)


def _are_dimensions(name: str, value: Any) -> bool:
    return _table(lambda dimension, number: dimension in DIMENSIONS and _whole(0)(number))(value)


KEYS: Mapping[str, Key] = {
    "name": Key(_text(r"[A-Za-z0-9][\w.-]*"), "of letters, digits, '.', '_' and '-'"),
    "config": Key(_text(r".+"), "the path of a config.json"),
    "checkpoint": Key(_text(r".+"), "the path of a folder that save_pretrained wrote"),
    "factory": Key(_text(r"[^:]+:[A-Za-z_][\w.]*"), '"package.module:function" or "path/to/file.py:function"'),
    "hub": Key(_text(r"[\w.-]+/[\w.-]+"), '"org/name"'),
    "revision": Key(_text(r".+"), "a branch, a tag or a commit", frozenset({"hub"})),
    "task": Key(_text(r".+"), "a task"),
    "dynamic": Key(
        _table(_are_dimensions),
        "a table of inputs with their dimensions that are batch and length: { x = { batch = 0, length = 1 } }",
        frozenset({"factory"}),
    ),
    "sizes": Key(
        _table(_is_size),
        f"a table of numbers from 1 on ({', '.join(k for k, many in SIZES.items() if not many)}) and lists of them "
        f"({', '.join(k for k, many in SIZES.items() if many)})",
    ),
    "tolerance": Key(
        _table(lambda key, value: key in ("ulps", "atol") and _is_number(value, 0) and value > 0),
        "a table of numbers above 0: { ulps = 64, atol = 1e-4 } or one of them",
    ),
    "priority": Key(lambda value: _is_number(value, 0), "a number from 0 on"),
    "tier": Key(lambda value: value in tuple(Tier), f"one of {', '.join(Tier)}"),
    "dtypes": Key(
        lambda value: isinstance(value, list) and bool(value) and all(each in DTYPES for each in value),
        f"a list of {', '.join(DTYPES)}",
    ),
    "trust_remote_code": Key(lambda value: isinstance(value, bool), "true or false", PRETRAINED),
    "seed": Key(_whole(0), "a number from 0 on"),
    "labels": Key(_text(r"[A-Za-z_]\w*"), "the name of an input"),
    "max_parameters": Key(_whole(1), "a number from 1 on, such as 350_000_000"),
}
"""Key of a `[[model]]` -> what it may be."""

TOP = ("model", "path")


@functools.lru_cache(maxsize=16)
def load(files: tuple[str, ...]) -> Mapping[str, Entry]:
    """The entries of all files by name, in their order. Raises `DeclarationError`."""
    found: dict[str, Entry] = {}
    for file in files:
        for entry in _of_file(Path(file)):
            if entry.name in found:
                said = f"{entry.name!r} is the name of a model at {found[entry.name].where()} as well"
                raise DeclarationError(f"{entry.where('name')}: {said}")
            found[entry.name] = entry
    return found


def shown(path: Path) -> str:
    """A path as a user would write it: from the current directory on where it is below that."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _of_file(path: Path) -> Iterator[Entry]:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise DeclarationError(f"{shown(path)}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{shown(path)}: not TOML: {error}") from None
    for key, complaint in _complaints_of_file(document):
        raise DeclarationError(f"{shown(path)}:{_line(text, 0, key)}: {complaint}")
    folders = [path.parent, *(path.parent / folder for folder in document.get("path", ()))]
    first = tuple(str(folder.resolve()) for folder in reversed(folders))  # what is named before the file's own folder
    for number, table in enumerate(document["model"], 1):
        for key, complaint in _complaints(table, path):
            raise DeclarationError(f"{shown(path)}:{_line(text, number, key)}: {complaint}")
        located = {key: _located(key, table[key], path) for key in SOURCES if key in table}
        lines = {key: _line(text, number, key) for key in ("", *table)}
        plain = {**table, **located, "file": str(path), "lines": lines, "path": first}
        yield msgspec.convert(plain, Entry)


def _line(text: str, number: int, key: str) -> int:
    """Line, from 1, of a key in the `number`th `[[model]]`, or of that itself; 0: before all of them."""
    headers = [0, *(n for n, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*model\s*\]\]", line))]
    if number >= len(headers):
        return 1  # the entries are written in another way
    start = headers[number]
    name = re.compile(rf"""\s*\[*\s*(model\s*\.\s*)?["']?{re.escape(key)}["']?\s*[.=\]]""")
    lines = text.splitlines()
    end = headers[number + 1] - 1 if number + 1 < len(headers) and number else len(lines)
    return next((n for n in range(max(start, 1), end + 1) if key and name.match(lines[n - 1])), max(start, 1))


def _located(kind: str, value: str, path: Path) -> str:
    """Paths from the file's folder on; names of modules and of the hub as they are."""
    if kind == "hub":
        return value
    if kind == "factory":
        place, _, function = value.rpartition(":")
        return f"{(path.parent / place).resolve()}:{function}" if place.endswith(".py") else value
    found = (path.parent / Path(value).expanduser()).resolve()
    return str(found / "config.json" if kind == "config" and found.is_dir() else found)


def _complaints_of_file(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key in document:
        if key not in TOP:
            keys = {**dict.fromkeys(TOP, "at the top"), **dict.fromkeys(KEYS, "under [[model]]")}
            meant = difflib.get_close_matches(key, keys, n=1)
            hint = f"; did you mean `{meant[0]}` {keys[meant[0]]}?" if meant else "; models go under [[model]]"
            yield key, f"unknown key `{key}`{hint}"
    tables = document.get("model")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        yield "model", "there is no model; write each as a table [[model]] with a `name`"
    folders = document.get("path", [])
    if not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        yield "path", f'`path` must be a list of folders in which your modules are, such as ["src"], not {folders!r}'


def _complaints(table: dict[str, Any], path: Path) -> Iterator[tuple[str, str]]:
    """(key, what is wrong with it and what would be right), most basic first."""
    for key in table:
        if key not in KEYS:
            meant = difflib.get_close_matches(key, [*KEYS, *TOP], n=1)
            hint = f"did you mean `{meant[0]}`?" if meant else f"the keys are {', '.join(KEYS)}"
            yield key, f"unknown key `{key}`; {hint}"
    if "name" not in table:
        yield "", '`name` is missing, such as name = "ours"'
    for key, value in table.items():
        if not KEYS[key].fits(value):
            yield key, f"`{key}` must be {KEYS[key].what}, not {value!r}"
    kinds = [kind for kind in SOURCES if kind in table]
    if len(kinds) != 1:
        said = f"`{'` and `'.join(kinds)}` exclude each other" if kinds else "it says nothing of where the model is"
        yield kinds[-1] if kinds else "", f"{table['name']}: {said}; give one of {', '.join(SOURCES)}"
        return
    (kind,) = kinds
    for key in table:
        if kind not in KEYS[key].of:
            yield key, f"`{key}` belongs to models with `{'` or `'.join(sorted(KEYS[key].of))}`, not with `{kind}`"
    yield from _task_complaints(table, kind)
    yield from _place_complaints(kind, table[kind], path)


def _task_complaints(table: dict[str, Any], kind: str) -> Iterator[tuple[str, str]]:
    task = table.get("task")
    if task is None and kind in PRETRAINED:
        yield "", f'{table["name"]}: `task` is missing, such as task = "causal-lm"'
    if task is not None and task not in TASKS:
        meant = difflib.get_close_matches(task, TASKS, n=1)
        hint = f"did you mean {meant[0]!r}?" if meant else f"the tasks are {', '.join(TASKS)}"
        yield "task", f"`task = {task!r}` is unknown; {hint}"
    varies = table.get("dynamic", {}).get("input_ids", {})
    if task == "causal-lm" and kind == "factory" and set(varies) != set(DIMENSIONS):
        yield "task", "to decode, tokens must vary: add `dynamic = { input_ids = { batch = 0, length = 1 } }`"


def _place_complaints(kind: str, value: str, path: Path) -> Iterator[tuple[str, str]]:
    """What can be seen of files without loading any."""
    located = _located(kind, value, path)
    if kind == "factory":
        place = located.rpartition(":")[0]
        if place.endswith(".py") and not Path(place).is_file():
            yield kind, f"`factory`: there is no file {shown(Path(place))}"
    elif kind == "config":
        yield from ((kind, f"`config`: {said}") for said in _config_complaints(Path(located)))
    elif kind == "checkpoint":
        folder = Path(located)
        if not folder.is_dir():
            yield kind, f"`checkpoint`: there is no folder {shown(folder)}"
            return
        yield from ((kind, f"`checkpoint`: {said}") for said in _config_complaints(folder / "config.json"))
        if not any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "pytorch_model*.bin")):
            yield (
                kind,
                f"`checkpoint`: {shown(folder)} has no *.safetensors and no pytorch_model.bin; "
                'for random weights say config = "..." instead',
            )


def _config_complaints(file: Path) -> Iterator[str]:
    if not file.is_file():
        yield f"there is no file {shown(file)}"
        return
    try:
        read = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        yield f"{shown(file)} is not JSON: {error}"
        return
    if not isinstance(read, dict) or not isinstance(read.get("model_type"), str):
        yield f'{shown(file)} has no "model_type", as the config.json of a Hugging Face model has'
