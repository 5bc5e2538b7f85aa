"""One cause is one fingerprint: what is taken out, what stays, and what two samples of one cause share."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conformance import expectations, fingerprints
from conformance.judgement.findings import Check
from conformance.outcomes import Outcome, Stage

VERBOSE = '\n\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace. For even more, set TORCH_LOGS="+dynamo"\n'

LOWERING = """LoweringException: NotImplementedError: no int64 sort
  target: aten.sort.default
  args[0]: TensorBox(StorageBox(
    InputBuffer(name='arg0_1', layout=FixedLayout('cpu', torch.int64, size=[3], stride=[1]))
  ))NotImplementedError: no int64 sort
  target: aten.sort.default
Found from :
   File "model.py", line 28, in <lambda>
"""

FAKE = """RuntimeError when making fake tensor call
  Explanation: Dynamo failed to run FX node with fake tensors: call_function <built-in function add>(*(FakeTensor(..., \
size=(3,)), FakeTensor(..., size=(4,))), **{}): got RuntimeError('Attempting to broadcast a dimension of length 4 at \
-1! Mismatching argument at index 1 had torch.Size([4]); but expected shape should be broadcastable to [3]')
  Hint: Your code may result in an error when running in eager.
"""

BRANCH = """Data-dependent branching
  Explanation: Detected data-dependent branching (e.g. `if my_tensor.sum() > 0:`).

      # File "<stdin>", line 15, in dd
  Hint: Use `torch.cond` to express dynamic control flow.

  Developer debug context: attempted to jump with TensorVariable()

 For more details about this graph break, please visit: https://meta-pytorch.github.io/gb/gb0170.html
"""

GPP = """C++ compile error

Command:
g++ /tmp/torchinductor_me/ab/cabc.main.cpp -D TORCH_INDUCTOR_CPP_WRAPPER -O3

Output:
/tmp/torchinductor_me/ab/cabc.main.cpp: In function ‘void kernel(const float*)’:
/tmp/torchinductor_me/ab/cabc.main.cpp:12:35: error: ‘tmp3’ was not declared in this scope; did you mean ‘tmp2’?
   12 |   auto x = tmp3;
"""

OPENVINO = """Exception from src/inference/src/cpp/core.cpp:107:
Exception from src/inference/src/dev/plugin.cpp:53:
Check 'inserted.second' failed at src/plugins/intel_cpu/src/graph.cpp:212:
[CPU] Unsupported precision f64 in node Sort_1234
"""

IREE = """Error invoking IREE compiler tool iree-compile
Error code: 1
Diagnostics:
<stdin>:17:10: error: failed to legalize operation 'torch.aten.cummax' that was explicitly marked illegal
  %3:2 = torch.aten.cummax %arg0 : !torch.vtensor<[5,3],f32>
"""

CASES = [
    # type, message, stage, fingerprint
    ("NotImplementedError", "no int64 sort", Stage.LOWER, "NotImplementedError:no int64 sort@lower:sort"),
    ("InductorError", LOWERING + VERBOSE, Stage.LOWER, "NotImplementedError:no int64 sort@lower:sort"),
    ("LoweringException", LOWERING.partition(": ")[2], Stage.LOWER, "NotImplementedError:no int64 sort@lower:sort"),
    (
        "BackendCompilerFailed",
        "backend='spyre' raised:\nNotImplementedError: no int64 sort\n second line" + VERBOSE,
        Stage.LOWER,
        "NotImplementedError:no int64 sort@lower:sort",
    ),
    (
        "BackendCompilerFailed",
        "backend='inductor' raised:\n" + LOWERING,
        Stage.LOWER,
        "NotImplementedError:no int64 sort@lower:sort",
    ),
    (
        "BackendCompilerFailed",
        "backend='_relax_backend' raised:\nAssertionError: " + VERBOSE,  # a bare assert: nothing is said
        Stage.LOWER,
        "AssertionError:@lower:sort",
    ),
    (
        "TorchRuntimeError",
        FAKE,
        Stage.CAPTURE,
        "RuntimeError:Attempting to broadcast a dimension of length N at N! Mismatching argument at index N had "
        "torch.Size([N]); but…@capture:sort",
    ),
    (
        "Unsupported",
        BRANCH,
        Stage.CAPTURE,
        "Unsupported:Data-dependent branching (attempted to jump with TensorVariable())@capture:sort",
    ),
    (
        "CppCompileError",
        GPP,
        Stage.CODEGEN,
        "CppCompileError:C++ compile error: ‘tmp’ was not declared in this scope; did you mean ‘tmp’?@codegen:sort",
    ),
    (
        "RuntimeError",
        OPENVINO,
        Stage.LOWER,
        "RuntimeError:Check 'inserted.second' failed at <file>: "
        "[CPU] Unsupported precision f64 in node Sort@lower:sort",
    ),
    (
        "CompilerToolError",
        IREE,
        Stage.LOWER,
        "CompilerToolError:Error invoking IREE compiler tool iree-compile: failed to legalize operation "
        "'torch.aten.cummax' that was explicitly…@lower:sort",
    ),
    (
        "_LinAlgError",
        "linalg.inv: The diagonal element 1 is zero, the inversion could not be completed because it is singular.",
        Stage.RUN,
        "LinAlgError:linalg.inv: The diagonal element N is zero, the inversion could not be completed because it is "
        "singular@run:sort",
    ),
    (
        "RemoteError",
        'Traceback (most recent call last):\n  File "/a/b.py", line 3, in f\n    g()\nValueError: no such op',
        Stage.RUN,
        "ValueError:no such op@run:sort",
    ),
    ("KeyError", "'buf12'", None, "KeyError:'buf'@unknown:sort"),
]


@pytest.mark.parametrize(("error", "message", "stage", "expected"), CASES)
def test_fingerprints_of_errors(error: str, message: str, stage: Stage | None, expected: str) -> None:
    assert fingerprints.of_error(error, message, op="sort", stage=stage) == expected


NORMALISED = [
    # what names the cause stays
    ("\"GeluKernelImpl\" not implemented for 'Int'", "\"GeluKernelImpl\" not implemented for 'Int'"),
    ("result type Float can't be cast to Long", "result type Float can't be cast to Long"),
    ("expected torch.float16 but got torch.bfloat16", "expected torch.float16 but got torch.bfloat16"),
    ("dtype float8_e4m3fn, complex64, int8 and uint16", "dtype float8_e4m3fn, complex64, int8 and uint16"),
    ("aten.max_pool2d_with_indices.default is missing", "aten.max_pool2d_with_indices.default is missing"),
    ("log1p, atan2, conv3d, polar, _softmax", "log1p, atan2, conv3d, polar, _softmax"),
    ("Expected 3D (unbatched) or 4-D input", "Expected 3D (unbatched) or 4-D input"),
    ("a 0-dim tensor", "a 0-dim tensor"),
    ("vtensor<[5,3],f32> to i64", "vtensor<[N],f32> to i64"),
    ("inf/nan and N/A, fwd/bwd", "inf/nan and N/A, fwd/bwd"),
    # sizes, indices, values
    (
        "The size of tensor a (3) must match b (4) at dimension 0",
        "The size of tensor a (N) must match b (N) at dimension N",
    ),
    ("input of size: [1, 2, 3]", "input of size: [N]"),
    ("input of size: []", "input of size: [N]"),
    ("torch.Size([4]) and (5,)", "torch.Size([N]) and (N)"),
    ("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)", "mat1 and mat2 shapes cannot be multiplied (N and N)"),
    ("got -1 and 1e-05, +2.5, 1_000", "got N and N"),
    ("between 0.1 and .5", "between N and N"),
    ("Eq(s0, 3) and 2*s1 + u0 < s53//2", "Eq(N) and N < N"),
    ("sizes [s0, 3, 2*s1]", "sizes [N]"),
    # names that are counted up
    ("buf12 and arg0_1 and primals_3 and tmp7 and x0", "buf and arg and primals and tmp and x"),
    ("triton_poi_fused_add_mul_0 failed", "triton_poi_fused_add_mul failed"),
    ("node add_12 of getitem_3", "node add of getitem"),
    # machines
    ("device cuda:1 and spyre:0", "device cuda and spyre"),
    ("<function f at 0x7f12ab>", "<function f>"),
    ("<built-in method add of type object at 0x7f12ab>", "<built-in method add>"),
    ("at address 0xdeadbeef", "at address <address>"),
    ("cannot open /tmp/torchinductor_me/ab/c.so", "cannot open <file>"),
    ("cannot open /home/you/x", "cannot open <file>"),
    ('File "/opt/lib/python3.11/site-packages/torch/x.py", line 12, in call', 'File "<file>", in call'),
    ("sort.py:12: bad", "sort.py: bad"),
    ("key ab12cd34ef56ab12cd34 missing", "key <hash> missing"),
    ("took 12.3s of 4.5 GiB", "took Ns of N GiB"),
    ("needs torch 2.13.0+cpu", "needs torch N"),
    ("see https://x.org/a?b=1 for more", "see for more"),
    ("\x1b[31mred\x1b[0m alert", "red alert"),
    # dumps and tails
    ("got tensor([1., 2.], dtype=torch.float16) here", "got tensor(...) here"),
    ("FakeTensor(..., size=(3, (4)))", "FakeTensor(...)"),
    ("TensorBox(StorageBox(never closed", "TensorBox(...)"),
    ("first line\nsecond line\nthird", "first line"),
    (
        "failed to match any schema:\naten::add() is missing value\nmore",
        "failed to match any schema: aten::add() is missing value",
    ),
    ("", ""),
    ("\n\n", ""),
]


@pytest.mark.parametrize(("message", "expected"), NORMALISED)
def test_normalised_messages(message: str, expected: str) -> None:
    assert fingerprints.normalise(message) == expected


@pytest.mark.parametrize("message", [*(c[1] for c in CASES), *(c[0] for c in NORMALISED)])
def test_normalising_again_changes_nothing(message: str) -> None:
    once = fingerprints.normalise(message)
    assert fingerprints.normalise(once) == once


PIECES = """size [3, 4] s0 2*s1 buf3 /tmp/a/b.py:3 0x7f 1e-5 -1 int64 conv2d (2x3) N N, , [ ] tensor( ) . : … cuda:0
add_1 - + x line 2.13.0+cpu @ a1b2c3d4e5f60718 i64 f32 u0 at object <file> 3D"""
WORDS = st.sampled_from(PIECES.split())


@given(st.text() | st.lists(WORDS, max_size=40).map(" ".join) | st.lists(WORDS, max_size=12).map("".join))
@example("0x0:0")
def test_normalising_is_idempotent_short_and_one_line(message: str) -> None:
    once = fingerprints.normalise(message)
    assert fingerprints.normalise(once) == once
    assert len(once) <= fingerprints.LIMIT
    assert len(once.splitlines()) <= 1


@given(
    st.tuples(*[st.integers(0, 10**6)] * 3),
    st.tuples(*[st.integers(0, 10**6)] * 3),
)
def test_two_samples_of_one_cause_share_a_fingerprint(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    def message(a: int, b: int, c: int) -> str:
        return f"index {a} out of bounds for buf{b} of size [{a}, {b}] on spyre:{c} at 0x{c:x} (s{a} + {b}, {c / 7})"

    assert fingerprints.normalise(message(*left)) == fingerprints.normalise(message(*right))


def raise_nothing() -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("message", "output", "added"),
    [
        (
            "RuntimeError: failed. See diagnostics." + VERBOSE,
            "noise\na.mlir:1:2: error: no op\n",
            "a.mlir:1:2: error: no op",
        ),
        ("RuntimeError: see the log", "x\n", ""),
        ("RuntimeError: no such op" + VERBOSE, "a.mlir:1:2: error: no op\n", ""),
    ],
)
def test_what_a_compiler_printed_is_added_to_messages_that_point_there(message: str, output: str, added: str) -> None:
    seen = fingerprints.with_diagnostic(message, output)
    assert (added in seen) if added else seen == message
    assert ("diagnostics: no op" in fingerprints.of_error("RuntimeError", seen, op="a", stage=None)) == bool(added)


def test_an_error_that_says_nothing_is_given_its_function() -> None:
    with pytest.raises(AssertionError) as caught:
        raise_nothing()
    seen = fingerprints.of_exception(caught.value, op="sort", stage=Stage.LOWER)
    assert seen == "AssertionError:in raise_nothing@lower:sort"


def test_the_function_is_that_of_the_wrapped_error() -> None:
    class InductorError(RuntimeError):
        pass

    try:
        try:
            raise_nothing()
        except AssertionError as inner:
            raise InductorError("AssertionError: ") from inner
    except InductorError as error:
        seen = fingerprints.of_exception(error, op="sort", stage=Stage.LOWER)
    assert seen == "AssertionError:in raise_nothing@lower:sort"


def test_an_error_that_says_something_is_the_same_with_and_without_its_traceback() -> None:
    error = ValueError("no such op in torch.int64")
    assert fingerprints.of_exception(error, op="a", stage=Stage.RUN) == fingerprints.of_error(
        "ValueError", str(error), op="a", stage=Stage.RUN
    )


@pytest.mark.parametrize("check", Check)
@pytest.mark.parametrize("error_class", ["", "far"])
def test_the_check_of_a_wrong_result_is_read_from_its_fingerprint(check, error_class):
    assert fingerprints.check_of(fingerprints.of_finding(str(check), error_class, op="softmax")) is check
    assert fingerprints.check_of("ValueError:values@compare:softmax") is None


def test_wrong_results_budgets_and_deaths() -> None:
    assert fingerprints.of_finding("values", "far", op="softmax") == "wrong:values/far@compare:softmax"
    assert fingerprints.of_finding("shape", op="softmax") == "wrong:shape@compare:softmax"
    seen = fingerprints.of_finding("dtype", "torch.float16 -> torch.float64", op="x")
    assert seen == "wrong:dtype/torch.float16 -> torch.float64@compare:x"
    assert (
        fingerprints.of_budget("3 graph breaks, at most 0 allowed", op="x")
        == "budget:N graph breaks, at most N allowed@run:x"
    )
    deaths = [
        (dict(outcome=Outcome.CRASH, signal="SIGSEGV"), "crash:SIGSEGV@run:x"),
        (dict(outcome=Outcome.CRASH, signal="SIGSEGV", place="f (a/b.py:3)"), "crash:SIGSEGV in f@run:x"),
        (dict(outcome=Outcome.CRASH, exit_code=3), "crash:exit 3@run:x"),
        (dict(outcome=Outcome.TIMEOUT, signal="SIGKILL", place="g (a/b.py:3)"), "timeout:g@run:x"),
        (dict(outcome=Outcome.OOM, signal="SIGKILL"), "oom@run:x"),
    ]
    for given_, expected in deaths:
        assert fingerprints.of_death(op="x", stage=Stage.RUN, **given_) == expected


@pytest.mark.parametrize(
    ("fingerprint", "parts"),
    [
        ("E:a@b: c@lower:sort", ("E:a@b: c", "lower", "sort")),
        ("oom@run:x", ("oom", "run", "x")),
        ("nothing", ("nothing", "", "")),
    ],
)
def test_split(fingerprint: str, parts: tuple[str, str, str]) -> None:
    assert fingerprints.split(fingerprint) == parts


@pytest.mark.parametrize(("error", "message", "stage", "expected"), CASES)
def test_a_fingerprint_and_its_cause_pin_themselves(
    error: str, message: str, stage: Stage | None, expected: str
) -> None:
    assert expectations.pins(expected, expected)
    assert expectations.pins(fingerprints.split(expected).cause, expected)
    assert expectations.pins(f"*@{stage or 'unknown'}:sort", expected)


def test_importing_needs_no_torch() -> None:
    body = "import sys, conformance.fingerprints; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", body], check=False).returncode == 0
