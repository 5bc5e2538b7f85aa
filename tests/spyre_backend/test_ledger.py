"""What the compilers are said to be made of, against what they are."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from spyre_backend import ledger


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('"""Doc."""\n\nx = 1  # why\n# only why\n', 1),
        ('def f():\n    """Doc\n    of two lines."""\n    return (\n        1\n    )\n', 4),
        ('x = """a\nb"""\n', 2),
    ],
)
def test_only_lines_with_code_count(tmp_path, text: str, lines: int) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert ledger._lines(path) == lines


def test_comments_of_cpp_do_not_count(tmp_path) -> None:
    path = tmp_path / "module.cpp"
    path.write_text("// why\nint x; // what\n/* of\ntwo */\n\nint y;\n")
    assert ledger._lines(path) == 2


def test_each_part_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "spyre_backend.ledger", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    entries = {entry["part"]: entry for entry in json.loads(done.stdout)}
    assert list(entries) == list(ledger.PARTS)
    assert "torch._inductor.codegen.simd.SIMDKernel" in entries["inductor"]["private"]
    assert "torch._dynamo.backends.common.aot_autograd" in entries["sendnn"]["private"]
    assert not any("_inductor" in name for name in entries["sendnn"]["private"])
    assert all(entries[part]["lowered"] > 10 and entries[part]["lines"] > 1000 for part in ("inductor", "sendnn"))
