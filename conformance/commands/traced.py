"""`conformance traced`: the calls of models in runs and files, and all of them as one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conformance import traced
from conformance.commands.runs import format_of
from conformance.report.table import Report, render
from conformance.report.traced import op_table
from conformance.reporting import FEW


def show(places: Sequence[str], output: Path | None, as_format: str, everything: bool) -> None:
    """Reads the runs or files, without any the newest run with traced calls; merges them into `output` where given."""
    to = format_of(as_format)
    paths = [traced.locate(place) for place in places] or [traced.locate()]
    calls = traced.merged(map(traced.read, paths))
    models = {model for call in calls for model in call.models}
    lines = [f"{len(calls)} calls of {len({call.op for call in calls})} ops by {len(models)} models", *map(str, paths)]
    if output is not None:
        traced.write(output, calls)
        lines.append(f"written to {output} ({output.stat().st_size / 1000:.0f} KB)")
    print(render(Report(lines, [op_table(calls, None if everything else FEW)]), to))
