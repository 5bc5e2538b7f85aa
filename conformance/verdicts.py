"""What the records of a case come to for pytest: one verdict, the text that goes with it, and JUnit properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from conformance.expectations import Kind
from conformance.outcomes import Outcome

if TYPE_CHECKING:
    from conformance.records import Record
    from conformance.session import Judged


class Verdict(StrEnum):
    """How an item ends."""

    PASS = "pass"
    XFAIL = "xfail"  # some samples fail, all of them as declared
    SKIP = "skip"
    FAIL = "fail"  # something unexpected


UNEXPECTED = "unexpected"
NO_SAMPLES = "the suite has no sample for it"


def of_case(judged: Sequence[Judged], *, shown: int, flags: str = "") -> tuple[Verdict, str]:
    """The verdict on a case and its text, in which at most `shown` unexpected samples are told in full.

    `flags` are the options that `conformance repro` needs.
    """
    unexpected = [item for item in judged if not item.verdict.ok]
    if unexpected:
        parts = [_told(item, flags) for item in unexpected[:shown]]
        parts += ["\n".join(_headline(item.record) for item in unexpected[shown:])] if unexpected[shown:] else []
        return Verdict.FAIL, "\n\n".join(parts)
    if not judged:
        return Verdict.SKIP, NO_SAMPLES
    if all(item.record.outcome is Outcome.SKIPPED for item in judged):
        return Verdict.SKIP, "; ".join(dict.fromkeys(item.record.reason or "no reason given" for item in judged))
    expected = [item for item in judged if item.verdict.kind is Kind.EXPECTED_FAILURE]
    if expected:
        kinds = Counter(f"{item.record.outcome} ({item.verdict.label})" for item in expected)
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        return Verdict.XFAIL, f"{len(expected)} of {len(judged)} samples: {told}"
    return Verdict.PASS, ""


def _told(item: Judged, flags: str) -> str:
    record, verdict = item.record, item.verdict
    lines = [_headline(record)]
    lines += [f"  {line}" for line in verdict.message.splitlines()]
    if record.reason:
        lines.append(f"  note: {record.reason}")
    lines += [f"  {line}" for line in verdict.edit.splitlines()]
    if record.outcome not in (Outcome.PASS, Outcome.INFRA):
        lines.append(f"  reproduce: conformance repro '{record.sample}' {flags}".rstrip())
    return "\n".join(lines)


def _headline(record: Record) -> str:
    stage = f" at {record.stage}" if record.stage is not None else ""
    owner = f", owner: {record.owner}" if record.owner is not None else ""
    return f"{record.sample}: {record.outcome}{stage}{owner}"


def counts(judged: Sequence[Judged]) -> dict[str, int]:
    """Outcome -> samples, and how many were unexpected."""
    found = Counter(str(item.record.outcome) for item in judged)
    found[UNEXPECTED] = sum(not item.verdict.ok for item in judged)
    return dict(found)


PROPERTIES = ("outcome", "stage", "support", "owner", "fingerprint", "graphs", "kernels", "error", "slack", "cpu_s")


def properties(judged: Sequence[Judged]) -> list[tuple[str, object]]:
    """JUnit properties of a case: `SAMPLE.NAME`, for what is known of each sample."""
    found: list[tuple[str, object]] = []
    for item in judged:
        record = item.record
        values = {name: getattr(record, name) for name in PROPERTIES}
        values["seconds"] = sum(filter(None, (record.compile_s, record.run_s))) or None
        values["fallbacks"] = sum(record.fallbacks.values()) or None
        for name, value in values.items():
            if value is not None and value != "":
                plain = value if isinstance(value, int | float) else str(value)
                found.append((f"#{record.index}.{name}", plain))
    return found
