"""One record as text. Pure."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from conformance.records import Record

GROUPS: dict[str, str] = {
    "identity": "suite backend seed digest numerics",
    "result": "outcome stage owner support fingerprint expectation reason rungs culprit_module culprit_op",
    "judgement": "compared error slack loosest measurements",
    "what ran": "graphs breaks recompiles kernels custom_kernels fallbacks lowered eager_ops cache_hits cache_misses",
    "cost": "reference_s compile_s compile_stages_s run_s device_s judge_s cpu_s backend_cpu_s",
    "memory": "peak_memory device_peak_memory",
    "process": "exit_code signal worker started",
}
"""How fields of a record are shown together; the rest is part of the id, or text shown below."""


def told(record: Record) -> str:
    """One record as text; what is not known is left out."""
    lines = [record.sample]
    for title, names in GROUPS.items():
        shown = [(name, text) for name in names.split() if (text := _value(name, getattr(record, name)))]
        if shown:
            lines.append(f"  {title}")
            lines += [f"    {name:<18} {text}" for name, text in shown]
    for title, text in (("message", record.message), ("traceback", record.traceback)):
        if text:
            lines.append(f"  {title}")
            lines += [f"    {line}" for line in text.rstrip().splitlines()]
    return "\n".join(lines)


def _value(name: str, value: Any) -> str:
    if value is None or value in ("", {}, []):
        return ""
    if name == "started":
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))
    if name.endswith("memory"):
        return f"{value / 2**20:.1f} MiB"
    if isinstance(value, float):
        return f"{value:.4g}" + (" s" if name.endswith("_s") else "")
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_value('', item) or item}" for key, item in value.items())
    if isinstance(value, list):
        return "; ".join(_struct(item) for item in value)
    return str(value)


def _struct(item: msgspec.Struct) -> str:
    fields = {name: getattr(item, name) for name in item.__struct_fields__}
    count, place = fields.pop("count", 1), fields.pop("place", "")
    return " ".join(map(str, fields.values())) + (f" at {place}" if place else "") + (f" ×{count}" if count > 1 else "")
