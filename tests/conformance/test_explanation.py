"""An explanation has graph, generated code, guards, ladder and result; what torch logs is told apart."""

from __future__ import annotations

import io
import subprocess
import sys

import msgspec
import pytest

from conformance import explanation

LOGGED = """\
V1130 03:54:23.625000 30539 torch/_dynamo/guards.py:4786] [0/0] [__guards] GUARDS:
V1130 03:54:23.637000 30539 torch/_dynamo/guards.py:4483] [0/0] [__guards] | +- TYPE_MATCH: L['args']
a warning of somebody else
V1130 03:55:12.476000 30539 torch/_inductor/graph.py:2722] [0/0] [__output_code] Output code:
V1130 03:55:12.476000 30539 torch/_inductor/graph.py:2722] [0/0] [__output_code]     tmp0 = load(x)
V1130 03:55:12.476000 30539 torch/_inductor/graph.py:2722] [0/0] [__output_code]
V1130 03:55:17.550000 30539 torch/_inductor/graph.py:2693] [0/0] [__output_code] Output code written to: /tmp/x.py
W1130 03:55:12.486000 30539 torch/x.py:1] a warning of torch
V1130 03:55:13.486000 30539 torch/_dynamo/x.py:1] [__recompiles] no frame id
"""


def test_logs_are_taken_apart_and_the_rest_passed_on() -> None:
    behind = io.StringIO()
    logs = explanation.Logs(behind)
    for line in LOGGED.splitlines(keepends=True):
        assert logs.write(line) == len(line)
    assert logs.texts() == {
        "guards": "GUARDS:\n| +- TYPE_MATCH: L['args']",
        "output_code": "Output code:\n    tmp0 = load(x)",
        "recompiles": "no frame id",
    }
    assert behind.getvalue().splitlines() == [
        "a warning of somebody else",
        "W1130 03:55:12.486000 30539 torch/x.py:1] a warning of torch",
    ]


IN_CHILD = """
import sys
from conformance import explanation
explanation.prepare()
import torch
from conformance.backends.compiled import CompiledBackend
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode

backend = CompiledBackend("aot_eager")
backend.setup()
backend.generated = lambda: {"first": "load x\\nstore y"}
fn = lambda x, n: torch.sin(x) * n
args = (torch.ones(4, 3).t(), 2)
case = Case("op", "mine", "float32", ShapeMode.STATIC, Direction.FORWARD)
sample = Sample(0, fn, args, {}, NumericalClass.ELEMENTWISE, "d", "lambda x, n: torch.sin(x) * n",
                replays=(((torch.ones(5, 3), 2), {}),))
for line in explanation.explain(backend, "ops", case, sample, 0):
    sys.stdout.buffer.write(line + b"\\n")
"""


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    done = subprocess.run([sys.executable, "-c", IN_CHILD], capture_output=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr.decode()
    decoded = [msgspec.json.decode(line, type=explanation.Section) for line in done.stdout.splitlines()]
    assert [section.title for section in decoded if section.title.startswith("Program")] == ["Program first"]
    return {section.title: section.text for section in decoded}


def test_the_sample_is_described(sections: dict[str, str]) -> None:
    assert "args[0]: float32[3, 4], strides [1, 3]" in sections["Sample"]
    assert "args[1]: 2" in sections["Sample"]
    assert "replay 0:" in sections["Sample"]


def test_the_graph_is_shown(sections: dict[str, str]) -> None:
    (title,) = (title for title in sections if title.startswith("Dynamo graphs"))
    assert "torch.sin(" in sections[title]


def test_guards_and_recompiles_are_shown(sections: dict[str, str]) -> None:
    assert "TENSOR_MATCH" in sections["Guards"] or "check_tensor" in sections["Guards"]
    assert "size mismatch" in sections["Recompiles"] or "stride mismatch" in sections["Recompiles"]


def test_the_ladder_and_the_result_are_shown(sections: dict[str, str]) -> None:
    assert sections["Ladder"].splitlines()[0].split() == ["dynamo", "pass"]
    assert sections["Ladder"].splitlines()[-1].split() == ["backend", "pass"]
    assert "outcome            pass" in sections["Result"]
