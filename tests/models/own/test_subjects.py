"""Models of a user's own become subjects: of a config, of a checkpoint, of a factory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conformance.cases import Case, Direction, NotBuildable, Options, ShapeMode, Tier, Tolerance, UserFault
from models import samples, sources
from models.decoding import DecodeSuite
from models.own import declarations, subjects
from models.suite import ModelSuite
from models.zoo import packages

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "attention_dropout": 0.5,
}

PARTS = {"layers": 1, "attention_heads": 2, "ffn_dim": 64}  # of an encoder or a decoder

NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, ids=None, scale=1.0):
        if x.shape[1] == 33:
            raise ValueError("not 33")
        return self.drop(self.linear(x)) * scale

def named():
    return Net(), {"x": torch.randn(2, 6, 4), "ids": torch.tensor([[7, 8, 9, 7, 8, 9]] * 2), "scale": 2.0}

def ordered():
    return Net(), (torch.randn(1, 6, 4),)

def too_many():
    return Net(), (torch.ones(1), 1, 2, 3, 4)

def lone():
    return Net()

def starred():
    class Starred(nn.Module):
        def forward(self, *xs):
            return xs
    return Starred(), (torch.ones(1),)

def raising():
    raise OSError("no disk")

def empty():
    return Net(), {"x": torch.ones(2, 0, 4)}

def apart():
    return Net(), {"x": torch.ones(2, 6, 4), "ids": torch.ones(2, 5)}

answer = 42
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "broken.py").write_text("import torch\nimport nowhere\n")
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    (tmp_path / "new.json").write_text(
        '{"model_type": "none", "auto_map": {"AutoConfig": "configuration_none.Config"}}'
    )
    monkeypatch.chdir(tmp_path)
    declarations.load.cache_clear()
    return tmp_path


def options(place: Path, *lines: str, **more) -> Options:
    (place / "m.toml").write_text('[[model]]\nname = "net"\n' + "\n".join(lines))
    return Options(models=(str(place / "m.toml"),), **more)


SIZES = "sizes = { lengths = [3, 9], batches = [3, 1] }"
DYNAMIC = "dynamic = { x = { batch = 0, length = 1 }, ids = { batch = 0, length = 1 } }"


def test_a_factory_at_other_sizes(place):
    made = subjects.subject("own/net", options(place, 'factory = "nets.py:named"', DYNAMIC, SIZES))
    module = made.build(torch.float64, 0, False)
    assert {p.dtype for p in module.parameters()} == {torch.float64}
    assert not module.training
    first = made.inputs(torch.float64, 0, 2, 6)
    longer = made.inputs(torch.float64, 0, 3, 9)
    assert longer["x"].shape == (3, 9, 4)
    assert torch.equal(longer["x"][:2, :6], first["x"])
    assert longer["ids"].tolist()[0] == [7, 8, 9] * 3
    assert longer["ids"].dtype is torch.int64
    assert longer["scale"] == 2.0
    assert made.dims == {"x": (0, 1), "ids": (0, 1)}
    assert (made.sizes.batch, made.sizes.length, made.sizes.lengths) == (2, 6, (3, 9))
    assert made.build(torch.float32, 0, True).drop.p == 0


def test_inputs_in_order_get_the_names_of_parameters_and_a_seed_changes_all(place):
    made = subjects.subject("own/net", options(place, 'factory = "nets.py:ordered"', "seed = 5"))
    weights = [made.build(torch.float32, seed, False).linear.weight for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert list(made.inputs(torch.float32, 0, 2, 6)) == ["x"]
    assert not made.batched
    assert not made.lengths


FAULTS = [
    (('factory = "nets.py:name"',), "m.toml:3: `factory`: nets.py has no 'name'; did you mean 'named'?"),
    (('factory = "nets.py:answer"',), "m.toml:3: `factory`: 'answer' of nets.py is a int, and no function"),
    (
        ('factory = "broken.py:make"',),
        "cannot be imported: ModuleNotFoundError: No module named 'nowhere' (broken.py:2)",
    ),
    (('factory = "nowhere.at.all:make"',), "`factory`: nowhere.at.all cannot be imported: ModuleNotFoundError"),
    (('factory = "nets.py:raising"',), "m.toml:3: `factory`: raised OSError: no disk (nets.py:35)"),
    (('factory = "nets.py:lone"',), "`factory`: returned Net; it must return (module, inputs)"),
    (('factory = "nets.py:too_many"',), "`factory`: its inputs do not fit forward(x, ids=None, scale=1.0): too many"),
    (('factory = "nets.py:starred"',), "inputs are passed by name, which forward(*xs) does not take"),
    (('factory = "nets.py:named"', "dynamic = { y = { batch = 0 } }"), "m.toml:4: `dynamic`: there is no input 'y'"),
    (
        ('factory = "nets.py:named"', "dynamic = { x = { length = 3 } }"),
        "x has 3 dimensions (2, 6, 4), numbered from 0",
    ),
    (('factory = "nets.py:named"', "dynamic = { scale = { batch = 0 } }"), "scale is a float; only tensors have dim"),
    (('factory = "nets.py:apart"', DYNAMIC), "`length` is 6 in x, 5 in ids; it must be one size in all of them"),
    (('factory = "nets.py:empty"', "dynamic = { x = { length = 1 } }"), "`length` is 0 in the example inputs"),
    (
        ('factory = "nets.py:named"', 'labels = "y"'),
        "m.toml:4: `labels`: there is no input 'y'; there are x, ids, scale",
    ),
    (('factory = "nets.py:named"', "max_parameters = 5"), "net has 20 parameters, more than the 5 that are allowed"),
    (
        ('factory = "nets.py:named"', DYNAMIC),
        "does not run with batch 2 and length 33 (which `sizes` can say otherwise)",
    ),
    (('config = "llama.json"', 'task = "ctc"'), "m.toml:4: `task`: no class of 'llama' is for 'ctc'; it has causal-lm"),
    (('config = "llama.json"', 'task = "base"', "max_parameters = 9"), "m.toml:5: `max_parameters`: net has 1"),
    (('config = "new.json"', 'task = "base"'), "is run only if you say `trust_remote_code = true`"),
]


@pytest.mark.parametrize(("lines", "words"), FAULTS, ids=[words[:50] for _, words in FAULTS])
def test_what_does_not_work_of_itself_is_the_users(place, lines, words):
    with pytest.raises(UserFault) as raised:
        subjects.subject("own/net", options(place, *lines)).build(torch.float32, 0, False)
    assert words in str(raised.value)


def test_a_config_has_random_weights_and_trains_without_dropout(place):
    chosen = options(place, 'config = "llama.json"', 'task = "causal-lm"', "tolerance = { atol = 0.5 }", "priority = 3")
    made = subjects.subject("own/net", chosen)
    assert (made.lengths, made.batched, made.labels) == (True, True, "input_ids")
    assert made.cache_argument in ("past_key_values", "cache")  # transformers has renamed it
    assert made.tolerance == Tolerance(atol=0.5)
    training = made.build(torch.float32, 0, True)
    assert training.config.attention_dropout == 0
    again = made.build(torch.float32, 0, False)
    assert again.config.attention_dropout == 0.5
    assert all(torch.equal(a, b) for a, b in zip(training.parameters(), again.parameters(), strict=True))
    facts = ModelSuite().manifest(chosen)
    assert facts["own"]["own/net"]["priority"] == 3
    assert str(made.tolerance) == "tolerance declared: atol 0.5"


def test_a_checkpoint_has_its_own_weights(place):
    from transformers import LlamaConfig, LlamaForCausalLM

    saved = LlamaForCausalLM(LlamaConfig(**LLAMA))
    saved.save_pretrained(place / "saved")
    made = subjects.subject("own/net", options(place, 'checkpoint = "saved"', 'task = "causal-lm"'))
    loaded = made.build(torch.float32, 0, False)
    assert torch.equal(loaded.model.embed_tokens.weight, saved.model.embed_tokens.weight)

    (place / "saved" / "model.safetensors").unlink()
    torch.save({"lm_head.weight": torch.ones(1), "path": Path("x")}, place / "saved" / "pytorch_model.bin")
    declarations.load.cache_clear()
    with pytest.raises(UserFault, match=r"a pickle that holds more than tensors.*save them as safetensors"):
        subjects.subject("own/net", options(place, 'checkpoint = "saved"', 'task = "causal-lm"', "seed = 1"))


def test_a_checkpoint_for_another_task_lacks_weights(place):
    from transformers import LlamaConfig, LlamaModel

    LlamaModel(LlamaConfig(**LLAMA)).save_pretrained(place / "saved")
    with pytest.raises(UserFault, match=r"the checkpoint lacks 1 weights of LlamaForCausalLM "):
        subjects.subject("own/net", options(place, 'checkpoint = "saved"', 'task = "causal-lm"'))


def test_an_encoder_decoder_decodes(place):
    config = {
        "model_type": "bart",
        "d_model": 32,
        **{f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in PARTS.items()},
        "vocab_size": 100,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 3,
    }
    (place / "bart.json").write_text(json.dumps(config))
    lines = 'config = "bart.json"', 'task = "seq2seq-lm"', "sizes = { prompt = 3, steps = 2, free = 1 }"
    chosen = options(place, *lines)
    case = next(iter(DecodeSuite().cases(chosen)))
    sample = next(samples.of_decoding(case, subjects.subject("own/net", chosen), 0))
    made = sample.drive(sample.fn, **sample.kwargs)
    assert sample.kwargs["decoder_input_ids"][:, 0].tolist() == [3, 3]
    assert (made["prefill"].shape, made["steps"].shape) == ((2, 3, 100), (2, 2, 100))


def test_a_hub_that_cannot_be_reached_is_a_skip(place, monkeypatch):
    import huggingface_hub

    def offline(*args, **kwargs):
        raise huggingface_hub.errors.LocalEntryNotFoundError("nothing there")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NotBuildable, match=r"m\.toml:3: HF_HUB_OFFLINE is set, and org/name is not in the cache"):
        subjects.subject("own/net", options(place, 'hub = "org/name"', 'task = "base"'))


def test_what_is_selected(place):
    lines = 'config = "llama.json"', 'task = "causal-lm"', 'dtypes = ["float64"]'
    own = options(place, *lines, tier=Tier.SMOKE)
    assert {case.subject for case in ModelSuite().cases(own)} == {"own/net"}
    assert {case.dtype for case in ModelSuite().cases(own)} == {"float64"}
    assert {case.lane for case in DecodeSuite().cases(own)} == {"dynamic-cache", "static-cache"}
    both = options(place, *lines, subjects=("own/*", "llama.causal-lm"))
    assert {case.subject for case in ModelSuite().cases(both)} == {"own/net", "llama.causal-lm"}
    assert not list(sources.source("own/").listed(Options()))
    with pytest.raises(ValueError, match="no model 'own/nett'; did you mean 'own/net'"):
        sources.subject("own/nett", own)


def test_samples_run_within_the_users_modules(place):
    case = Case("model", "own/net", "float32", ShapeMode.DYNAMIC, Direction.FORWARD, "samples")
    lines = 'factory = "nets.py:named"', DYNAMIC, SIZES, "tolerance = { ulps = 9 }"
    made = list(samples.of_forward(case, sources.subject("own/net", options(place, *lines)), 0))
    assert [len(sample.replays) for sample in made] == [2, 1]
    assert made[0].tolerance == Tolerance(ulps=9)
    assert made[0].drive(made[0].fn, **made[0].kwargs).shape == (3, 6, 4)


def test_a_script_makes_the_model_of_the_users_files_alone(place):
    if packages.prepare() is not None:
        pytest.skip("transformers alone cannot be imported beside a torchvision that does not fit torch")
    for lines in (('factory = "nets.py:named"',), ('config = "llama.json"', 'task = "causal-lm"')):
        made = subjects.subject("own/net", options(place, *lines))
        statements, expression = made.script(torch.float64)
        assert "from models" not in statements
        text = f"import sys, torch\nwith torch.no_grad():\n    exec({statements!r})\nfound = {expression}\n"
        text += "print(type(found).__name__, next(found.parameters()).dtype)"
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
        assert done.stdout.split() == [type(made.build(torch.float64, 0, False)).__name__, "torch.float64"], done.stderr
        declarations.load.cache_clear()
