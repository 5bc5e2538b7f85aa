"""A backend that breaks one op: the model sweep finds the model wrong, the layer, and the op; a script shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from conformance import diagnosis, execute, repro
from conformance.backends import registry
from conformance.cases import Case, Options, Tier
from conformance.outcomes import Outcome
from models.decoding import DecodeSuite
from models.suite import ModelSuite
from models.zoo import packages

BROKEN = f"{Path(__file__).parent / 'fakes' / 'broken.py'}:Broken"
VIT = "model:vit.image-classification:float32:static:fwd:samples"


def first_sample(suite, text):
    case, _ = Case.parse(text)
    return case, next(iter(suite.samples(case, Options(tier=Tier.NIGHTLY))))


@pytest.fixture(scope="module")
def broken():
    backend = registry.find(BROKEN)
    backend.setup()
    return backend


def test_the_layer_and_the_op_are_named(broken):
    case, sample = first_sample(ModelSuite(), VIT)
    record = execute.run_sample(broken, case, sample, suite="models")
    assert record.outcome is Outcome.WRONG
    assert record.culprit_op == "aten::gelu"
    path, kind = record.culprit_module.split()
    assert "layers.0" in path
    assert "GELU" in kind


def test_a_script_without_this_package_shows_it(broken, tmp_path):
    if packages.prepare() is not None:
        pytest.skip("transformers alone cannot be imported beside a torchvision that does not fit torch")
    case, sample = first_sample(ModelSuite(), VIT)
    setting, failure = diagnosis.setting_of(broken, case, sample), diagnosis.failure_of(broken, case, sample)
    script = tmp_path / "repro.py"
    script.write_text(repro.compose(setting, failure))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "broken: tensor" in done.stdout
    text = script.read_text()
    assert "conformance" not in text
    assert "models.zoo" not in text
    script.write_text(text.replace("backend=breaks_gelu", 'backend="eager"'))  # as if it were mended
    assert subprocess.run([sys.executable, script], capture_output=True, cwd=tmp_path).returncode == 0


def test_a_script_for_one_graph_asks_for_one(broken):
    case, sample = first_sample(ModelSuite(), VIT.replace("samples", "fullgraph"))
    assert "torch.compile(fn, fullgraph=True, backend=" in diagnosis.setting_of(broken, case, sample).compiled


def test_a_decode_loop_has_no_script_of_its_own(broken):
    case, sample = first_sample(DecodeSuite(), "decode:llama.causal-lm:float32:automatic:fwd:dynamic-cache")
    with pytest.raises(repro.CannotRepro, match="more than a call of the model"):
        diagnosis.setting_of(broken, case, sample)
