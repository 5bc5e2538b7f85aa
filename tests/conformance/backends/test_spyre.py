"""The adapter: the suite's protocol without the suite."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from conformance.backends import registry
from conformance.backends.protocol import BackendError
from conformance.backends.spyre import VARIABLE, SpyreBackend

pytestmark = pytest.mark.filterwarnings("ignore::spyre_backend.HostFallbackWarning")


@pytest.fixture
def backend() -> SpyreBackend:
    backend = SpyreBackend()
    backend.setup()
    backend.reset()
    return backend


def test_says_what_it_is(backend: SpyreBackend) -> None:
    available, reason = backend.availability()
    assert available, reason
    capabilities = backend.capabilities()
    assert capabilities["device"] == "spyre"
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in capabilities["dtypes"])
    assert set(capabilities["number_formats"]) == set(capabilities["accumulation"])
    assert eval(backend.compile_source.format(dynamic=False), {"torch": torch, "fn": torch.sin}) is not None


def test_says_that_a_compiler_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    available, reason = SpyreBackend().availability()
    assert available, "an earlier build may be there"
    assert "no C++ compiler: /nonexistent/c++ not found" in reason


def test_observes_kernels_lowerings_fallbacks_and_copies(backend: SpyreBackend) -> None:
    x = torch.randn(4, 8, device="spyre")
    backend.compile(torch.neg, dynamic=False)(x)  # the first compilation of a process makes constants on the device
    compiled = backend.compile(lambda t: (t.sin() + 1).sum(-1), dynamic=False)
    with backend.observe() as seen:
        got = compiled(x)
        moved = got.cpu()
    torch.testing.assert_close(moved, (x.cpu().sin() + 1).sum(-1))
    assert seen["kernels"] >= 1
    assert seen["fallbacks"] == {}
    assert {"aten::sin", "aten::add.Tensor", "aten::sum.dim_IntList"} <= set(seen["lowered"])
    assert seen["transfers"] == 1
    assert seen["bytes_moved"] >= x.nbytes
    assert seen["device_s"] > 0
    with backend.observe() as again:  # run without compiling: the same program, counted anew
        compiled(x)
    assert again["kernels"] == seen["kernels"]
    assert again["lowered"] == seen["lowered"]
    with backend.observe() as eager:
        torch.sin(x)
    assert (eager["kernels"], eager["fallbacks"], eager["lowered"]) == (0, {"aten::sin": 1}, {})


def test_observes_what_ran_before_an_error(backend: SpyreBackend) -> None:
    x = torch.ones(2, device="spyre")
    with pytest.raises(RuntimeError, match="shape"), backend.observe() as seen:
        x.sin().view(3)
    assert seen["fallbacks"] == {"aten::sin": 1}


def test_tells_refusals_from_bugs(backend: SpyreBackend) -> None:
    with pytest.raises(NotImplementedError) as refusal:
        torch.eye(2, device="spyre").to_sparse()
    assert backend.unsupported(refusal.value)
    wrapped = RuntimeError("while compiling")
    wrapped.__cause__ = refusal.value
    assert backend.unsupported(wrapped)
    assert not backend.unsupported(KeyError("x"))


_SPECIALISED = """
import torch
from conformance.backends.spyre import SpyreBackend

backend = SpyreBackend()
backend.setup()
for bound in (2.0, 3.0, 5.0):
    x = torch.ones(4, device="spyre", requires_grad=True)
    y = backend.compile(torch.clamp, dynamic=True)(x, min=bound)
    y.sum().backward()
    print(y.max().item(), x.grad.sum().item())
    backend.reset()
"""


def test_no_graph_is_taken_that_was_specialised_for_an_earlier_sample(backend: SpyreBackend, tmp_path) -> None:
    environment = {**os.environ, **backend.environment(), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _SPECIALISED],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines() == ["2.0 0.0", "3.0 0.0", "5.0 0.0"], done.stderr


# ---- numbers -------------------------------------------------------------------------------------------------------


def test_dl16_is_a_backend_of_its_own() -> None:
    ieee, dl16 = (registry.find("spyre", backend_options={"numerics": mode}) for mode in ("ieee", "dl16"))
    assert (SpyreBackend().name, ieee.name, dl16.name) == ("spyre", "spyre", "spyre-dl16")
    assert [b.environment()[VARIABLE] for b in (SpyreBackend(), ieee, dl16)] == ["ieee", "ieee", "dl16"]
    declared = registry.capabilities(dl16)
    assert (declared.number_formats["float16"], declared.accumulation["float16"]) == ("dl16", "fp32")
    assert registry.capabilities(ieee).number_formats["float16"] == "fp16"
    made = subprocess.run(
        [sys.executable, "-c", f"{dl16.imports}\nprint(spyre_backend.numerics.MODE.value)"],
        env={**os.environ, VARIABLE: ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert made.stdout.strip() == "dl16", made.stderr


def test_both_compilers_take_the_numbers_of_the_device() -> None:
    sendnn = "conformance.backends.sendnn:SendnnBackend"
    dl16 = registry.find(sendnn, backend_options={"numerics": "dl16", "host": True})
    assert (dl16.name, registry.find(sendnn).name) == ("sendnn-dl16", "sendnn")
    assert "'host': True" in dl16.compile_source
    assert "numerics" not in dl16.compile_source
    assert dl16.environment()[VARIABLE] == "dl16"
    assert registry.capabilities(dl16).number_formats["float16"] == "dl16"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numerics": "dl"}, "no numerics 'dl'; did you mean 'dl16'"),
        ({"numerics": 16}, "no numerics 16; .*there are ieee, dl16"),
        ({"number": "dl16"}, "no option 'number'; there is numerics"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(BackendError, match=message):
        registry.find("spyre", backend_options=options)


def test_numbers_of_which_results_would_not_tell_are_refused(
    backend: SpyreBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BackendError, match="the device of this process has ieee numbers"):
        SpyreBackend({"numerics": "dl16"}).setup()
    monkeypatch.setenv(VARIABLE, "dl16")
    with pytest.raises(BackendError, match="say --backend-options numerics=dl16 instead"):
        SpyreBackend()
    assert SpyreBackend({"numerics": "ieee"}).name == "spyre"


_JUDGED = """
import sys, warnings, torch
warnings.simplefilter("ignore")
from conformance.backends import registry
from conformance.calls import run_sample
from conformance.cases import Case, Direction, NumericalClass, Sample, ShapeMode
from conformance.judgement.judge import judge
from conformance.reference import make_reference

backend = registry.find("spyre", backend_options={"numerics": "dl16"})
backend.setup()
from spyre_backend.program.opcodes import Elementwise
from spyre_backend.simulator import elementwise

x = torch.randn(200, generator=torch.Generator().manual_seed(0)).half()

def judged(fn, numerics):
    sample = Sample(0, fn, (x,), {}, numerics, "", "")
    case = Case("test", "f", "float16", ShapeMode.STATIC, Direction.FORWARD)
    compiled = backend.compile(fn, dynamic=False)
    result = run_sample(compiled, sample, direction="fwd", device="spyre")
    return judge(case, sample, make_reference(case, sample), result, registry.capabilities(backend)).ok

cases = [
    (torch.exp, NumericalClass.ELEMENTWISE),
    (torch.neg, NumericalClass.EXACT),
    (lambda x: torch.softmax(x, 0), NumericalClass.COMPOSITE),
]
print([judged(*each) for each in cases])
right = dict(elementwise._FUNCTIONS)
elementwise._FUNCTIONS[Elementwise.EXP] = lambda a: torch.exp(a) * 1.01
elementwise._FUNCTIONS[Elementwise.NEG] = lambda a: -a * (1 + 2.0**-9)
backend.reset()
print([judged(*each) for each in cases[:2]])
"""


def test_what_is_right_in_dl16_passes_and_an_error_of_one_percent_is_caught() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _JUDGED],
        env={**os.environ, **SpyreBackend({"numerics": "dl16"}).environment()},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.splitlines() == ["[True, True, True]", "[False, False]"], done.stderr
