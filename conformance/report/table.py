"""A table as data, and how it is set as text. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple


class Format(StrEnum):
    """Where the text goes: a terminal, or an issue on GitHub."""

    PLAIN = "plain"
    GITHUB = "github"


class Share(float):
    """A part of a whole, 0 to 1; shown in percent."""


class Table(NamedTuple):
    """Cells are str, int, float, `Share` or None (nothing known). `notes` stand below."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()


class Report(NamedTuple):
    """Lines of text, then tables."""

    lines: Sequence[str]
    tables: Sequence[Table]


def render(report: Report | Table, to: Format = Format.PLAIN) -> str:
    """The text of a report; tables without rows are left out."""
    if isinstance(report, Table):
        report = Report((), (report,))
    parts = ["\n".join(_text(line, to) for line in report.lines)] if report.lines else []
    parts += [_table(table, to) for table in report.tables if table.rows]
    return "\n\n".join(parts)


def _table(table: Table, to: Format) -> str:
    from tabulate import tabulate  # here: not needed for `--help`

    rows = [[_cell(value, to) for value in row] for row in table.rows]
    right = [_is_number(row[column] for row in table.rows) for column in range(len(table.headers))]
    style = "pipe" if to is Format.GITHUB else "simple"
    text = tabulate(
        rows,
        headers=[_text(header, to) for header in table.headers],
        tablefmt=style,
        disable_numparse=True,
        colalign=["right" if number else "left" for number in right],
    )
    title = f"### {table.title}\n\n" if to is Format.GITHUB else f"{table.title}\n"
    notes = "".join(f"\n{_text(note, to)}" for note in table.notes)
    return title + text + ("\n" + notes if notes and to is Format.GITHUB else notes)


def _is_number(values: Iterable[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) for value in known)


def _cell(value: Any, to: Format) -> str:
    if value is None:
        return ""
    if isinstance(value, Share):
        return f"{100 * value:.1f}%"
    if isinstance(value, float):
        return f"{value:.3g}"
    return _text(str(value), to)


def _text(text: str, to: Format) -> str:
    """One line; in Markdown nothing of it is taken for markup."""
    text = " ".join(text.split()) if "\n" in text else text
    if to is Format.GITHUB:
        for mark in ("\\", "|", "<", "*", "_", "`"):
            text = text.replace(mark, f"\\{mark}")
    return text
