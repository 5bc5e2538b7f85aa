"""What each compiler is made of: `python -m spyre_backend.ledger` prints it as a table, `--json` as data.

Counted from the sources and the tables as they are: lines that hold code, overloads that are written by hand (lowered
or decomposed), and private symbols of torch that the compiler touches. Both share the device, the tile program, the
simulator and the cost model, which are counted on a line of their own.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent

PARTS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "inductor": (("inductor",), "inductor"),
    "sendnn": (("sendnn",), "sendnn"),
    "shared": (("device", "csrc", "program", "simulator", "cost"), "device"),
}
"""Part -> its folders, and its section in `upstream.py`."""


@dataclass(frozen=True)
class Entry:
    """One part: lines of code, operators by hand, and the private symbols of torch that it touches."""

    part: str
    lines: int
    lowered: int
    decomposed: int
    private: tuple[str, ...]


def ledger() -> list[Entry]:
    """All parts. Imports torch and both compilers, for their tables."""
    return [
        Entry(part, sum(map(_lines, _files(folders))), *_by_hand(part), _private(section))
        for part, (folders, section) in PARTS.items()
    ]


def _files(folders: Sequence[str]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".cpp", ".h"))


def _lines(path: Path) -> int:
    """Lines with code on them: neither blank nor only a comment or a docstring."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        bare = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
        return sum(bool(line.strip()) for line in bare.splitlines())
    lines: set[int] = set()
    at_start = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            at_start = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            if not (at_start and token.type == tokenize.STRING):  # a docstring begins its line
                lines.update(range(token.start[0], token.end[0] + 1))
            at_start = False
    return len(lines)


def _by_hand(part: str) -> tuple[int, int]:
    """How many overloads a part lowers and decomposes itself."""
    if part == "inductor":
        from spyre_backend.inductor.decompositions import RULES
        from spyre_backend.inductor.lowerings import overloads

        return len(overloads()), len(RULES)
    if part == "sendnn":
        from spyre_backend.sendnn.decompositions import DECOMPOSITIONS
        from spyre_backend.sendnn.ops import LOWERINGS

        return len(LOWERINGS), len(DECOMPOSITIONS)
    return 0, 0


def _private(section: str | None) -> tuple[str, ...]:
    """The symbols that a section of `upstream.py` names: of modules or attributes that begin with an underscore."""
    text = (ROOT / "upstream.py").read_text(encoding="utf-8")
    found = re.search(rf"# -+ begin: {section} -+\n(.*?)# -+ end: {section} -+", text, re.DOTALL)
    assert found is not None, f"upstream.py has no section {section}"
    body = found.group(1)
    names = {f"{module}.{name}" for module, name in re.findall(r'\("(torch\.[\w.]+)", "(\w+)"\)', body)}
    for module, imported in re.findall(r"from (torch[\w.]*) import ([\w, ]+)", body):
        names.update(f"{module}.{name.strip()}" for name in imported.split(","))
    names.update(name for name in re.findall(r"\btorch(?:\.\w+)+", body) if name.count(".") > 1)
    modules = {name.rpartition(".")[0] for name in names}
    return tuple(sorted(name for name in names - modules if re.search(r"\._", name)))


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(prog="python -m spyre_backend.ledger", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="everything, with the names of the private symbols")
    as_json = parser.parse_args().json
    entries = ledger()
    if as_json:
        print(json.dumps([asdict(entry) for entry in entries], indent=1))
        return
    print(f"{'':10}{'lines':>8}{'lowered':>10}{'decomposed':>12}{'private symbols of torch':>26}")
    for entry in entries:
        print(f"{entry.part:10}{entry.lines:8}{entry.lowered:10}{entry.decomposed:12}{len(entry.private):26}")
    print("sendnn is a reconstruction, not IBM's code.")


if __name__ == "__main__":
    main()
