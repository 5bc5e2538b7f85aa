"""Rendering: numbers to the right, shares in percent, nothing of a message taken for Markdown."""

from __future__ import annotations

import pytest

from conformance.report.table import Format, Report, Share, Table, render

TABLE = Table("Title", ("op", "n", "share"), [("a|b\nc", 3, Share(0.25)), ("d", None, None)], ["A note with *stars*."])


def test_plain() -> None:
    assert render(TABLE) == "\n".join(
        [
            "Title",
            "op       n    share",
            "-----  ---  -------",
            "a|b c    3    25.0%",
            "d",
            "A note with *stars*.",
        ]
    )


def test_github() -> None:
    assert render(Report(["run <x>"], [TABLE]), Format.GITHUB).splitlines() == [
        "run \\<x>",
        "",
        "### Title",
        "",
        "| op     |   n |   share |",
        "|:-------|----:|--------:|",
        "| a\\|b c |   3 |   25.0% |",
        "| d      |     |         |",
        "",
        "A note with \\*stars\\*.",
    ]


@pytest.mark.parametrize("to", list(Format))
def test_tables_without_rows_are_left_out(to: Format) -> None:
    assert render(Report(["x"], [Table("T", ("a",), [])]), to) == "x"
