"""What happened to one sample, section by section. Imports torch; runs in a child that the sample may kill.

Graphs come from a Dynamo backend of our own, guards and generated code from torch's own logs (`TORCH_LOGS`), which
`prepare` turns on before torch is imported.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from conformance.cases import Case, Sample

if TYPE_CHECKING:
    from conformance.backends.protocol import Backend
    from conformance.reference import Reference

LOGS = {"guards": "Guards", "output_code": "Generated code", "recompiles": "Recompiles"}
"""Artifacts of TORCH_LOGS that are shown, by the title of their section."""

_LINE = re.compile(r"^[VDIWE]\d{4} \d\d:\d\d:\d\d\.\d+ .*?\] (?:\[[^\]]*\] )?\[__(\w+)\] ?(.*)$")


class Section(msgspec.Struct):
    """One part of an explanation. `code` is shown as it is, line by line."""

    title: str
    text: str
    code: bool = False


def prepare() -> None:
    """In the child, before torch is imported: have torch log, and keep what it does. Caches would hide it."""
    os.environ |= {"TORCH_LOGS": ",".join(LOGS), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    sys.stderr = Logs(sys.stderr)  # type: ignore[assignment]


def explain(backend: Backend, suite: str, case: Case, sample: Sample, seed: int) -> Iterator[bytes]:
    """Sections as JSON, each as soon as it is known. The backend has been set up."""
    for section in _sections(backend, suite, case, sample, seed):
        if section.text.strip():
            yield msgspec.json.encode(section)


def _sections(backend: Backend, suite: str, case: Case, sample: Sample, seed: int) -> Iterator[Section]:
    from conformance import execute, ladder
    from conformance.report import record as report

    yield Section("Sample", _described(case, sample))
    yield from _graphs(case, sample)
    yield from _compiled(backend, case, sample)
    record = execute.run_sample(backend, case, sample, suite=suite, seed=seed)
    if ladder.BACKEND not in record.rungs and not getattr(backend, "control", False):
        record.rungs = dict(_ladder(backend, case, sample))
    rungs = "\n".join(f"{rung:<28} {outcome}" for rung, outcome in record.rungs.items())
    yield Section("Ladder", rungs, code=True)
    yield Section("Result", report.told(record), code=True)


def _described(case: Case, sample: Sample) -> str:
    from conformance import trees

    lines = [
        f"id:      {case.sample_id(sample.index)}",
        f"call:    {sample.source}",
        f"class:   {sample.numerics}",
        f"digest:  {sample.digest}",
        *([str(sample.tolerance)] if sample.tolerance is not None else []),
    ]
    for number, (args, kwargs) in enumerate([(sample.args, sample.kwargs), *sample.replays]):
        title = "inputs" if number == 0 else f"replay {number - 1}"
        leaves = [*trees.flatten(args, "args"), *trees.flatten(dict(kwargs), "kwargs")]
        lines += [f"{title}:", *(f"  {path}: {_value(leaf)}" for path, leaf in leaves)]
    return "\n".join(lines)


def _value(value: Any) -> str:
    import torch

    if not isinstance(value, torch.Tensor):
        return repr(value)
    text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}" if not value.is_nested else "nested tensor"
    if value.layout is not torch.strided:
        return f"{text} {value.layout}"
    if not value.is_nested and not value.is_contiguous():
        text += f", strides {list(value.stride())}"
    return text + (f", offset {value.storage_offset()}" if value.storage_offset() else "")


def _graphs(case: Case, sample: Sample) -> Iterator[Section]:
    """What Dynamo captures, on the CPU."""
    import torch

    from conformance import callables, calls

    found: list[str] = []

    def keep(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(module.print_readable(print_output=False).strip())
        return module.forward

    torch.compiler.reset()
    error = ""
    try:
        calls.run_sample(
            torch.compile(callables.on_device(sample.fn), backend=keep, dynamic=case.shape_mode.dynamic),
            sample,
            direction=case.direction,
        )
    except Exception as raised:
        error = f"\n\nraised {type(raised).__name__}: {(str(raised).splitlines() or [''])[0]}"
    torch.compiler.reset()
    yield Section(f"Dynamo graphs ({len(found)})", "\n\n".join(found) + error, code=True)


def _compiled(backend: Backend, case: Case, sample: Sample) -> Iterator[Section]:
    """What torch logs, and the backend says, while it compiles and runs the sample."""
    from conformance import callables, calls

    getattr(backend, "reset", _nothing)()
    begin = getattr(backend, "begin", None)
    if begin is not None:
        begin(case.sample_id(sample.index), calls=1 + len(sample.replays))
    logs = sys.stderr if isinstance(sys.stderr, Logs) else Logs(sys.stderr)
    logs.lines.clear()
    with contextlib.suppress(Exception):  # it is run again for the record, which has the error
        compiled = callables.compiled(backend, case, sample)
        calls.run_sample(compiled, sample, direction=case.direction, device=backend.device)
    texts = logs.texts()
    for name, title in LOGS.items():
        yield Section(title, texts.get(name, ""), code=True)
    generated: Mapping[str, str] = getattr(backend, "generated", dict)()
    for name, text in generated.items():
        yield Section(f"Program {name}", text, code=True)


def _nothing() -> None:
    return None


def _ladder(backend: Backend, case: Case, sample: Sample) -> Mapping[str, str]:
    from conformance import ladder
    from conformance.judgement.judge import judge

    reference = _reference(case, sample)
    return ladder.climb(case, sample, reference, backend, judge).rungs if reference is not None else {}


def _reference(case: Case, sample: Sample) -> Reference | None:
    from conformance.reference import ReferenceUnavailable, make_reference

    try:
        return make_reference(case, sample)
    except ReferenceUnavailable:
        return None


class Logs:
    """Stands for standard error: takes what torch logs by artifact out of what is written, and passes on the rest."""

    def __init__(self, behind: Any) -> None:
        self.behind = behind
        self.lines: list[tuple[str, str]] = []  # artifact, line

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            parsed = _LINE.match(line)
            if parsed:
                self.lines.append((parsed[1], parsed[2]))
            elif line.strip() or not self.lines:
                self.behind.write(line)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    def texts(self) -> dict[str, str]:
        """Artifact -> what was logged, without the prefix that torch puts before each line."""
        found: dict[str, list[str]] = {}
        for name, line in self.lines:
            if not line.startswith("Output code written to"):
                found.setdefault(name, []).append(line)
        return {name: "\n".join(lines).strip() for name, lines in found.items()}
