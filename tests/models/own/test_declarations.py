"""Files of --models: what is right is read, and what is wrong is said with file, line, key and what would be right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conformance.cases import Tier
from models.own import declarations
from models.own.declarations import DeclarationError
from models.subjects import Sizes

CONFIG = '{"model_type": "llama"}'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a config, a checkpoint, one without weights, and a file with factories."""
    for name in ("checkpoint", "bare"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(CONFIG)
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "none.json").write_text("{}")
    (tmp_path / "checkpoint" / "model.safetensors").write_bytes(b"")
    (tmp_path / "nets.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(place: Path, text: str) -> dict[str, declarations.Entry]:
    file = place / "m.toml"
    file.write_text(text)
    declarations.load.cache_clear()
    return dict(declarations.load((str(file),)))


EVERYTHING = """
path = ["src"]

[[model]]
name = "factory"
factory = "nets.py:make"
dynamic = { x = { batch = 0, length = 1 } }
sizes = { batch = 4, lengths = [5, 9] }
tolerance = { ulps = 64, atol = 1e-4 }
priority = 2.5
tier = "pr"
dtypes = ["float32", "bfloat16"]
seed = 3
labels = "x"
max_parameters = 1_000

[[model]]
name = "config"
config = "."
task = "causal-lm"
trust_remote_code = true

[[model]]
name = "checkpoint"
checkpoint = "checkpoint"
task = "causal-lm"

[[model]]
name = "hub"
hub = "org/name"
revision = "main"
task = "base"

[[model]]
name = "module"
factory = "models.net:make"
"""


def test_everything(place):
    entries = read(place, EVERYTHING)
    assert {name: entry.source for name, entry in entries.items()} == {
        "factory": "factory",
        "config": "config",
        "checkpoint": "checkpoint",
        "hub": "hub",
        "module": "factory",
    }
    factory = entries["factory"]
    assert factory.factory == f"{place}/nets.py:make"
    assert factory.path == (str(place / "src"), str(place))
    assert factory.all_sizes(Sizes()) == Sizes(batch=4, lengths=(5, 9))
    assert (factory.tier, factory.dtypes, factory.priority) == (Tier.PR, ("float32", "bfloat16"), 2.5)
    assert factory.where("dynamic") == "m.toml:7"
    assert entries["hub"].where() == "m.toml:28"
    assert entries["config"].config == str(place / "config.json")


MODEL = '[[model]]\nname = "net"\n'
MISTAKES = [
    ("[[model]\n", "m.toml: not TOML: "),
    ("", "m.toml:1: there is no model; write each as a table [[model]]"),
    ('factory = "a:b"\n' + MODEL, "m.toml:1: unknown key `factory`; did you mean `factory` under [[model]]?"),
    (f'path = "src"\n{MODEL}factory = "a:b"', "m.toml:1: `path` must be a list of folders"),
    ('[[model]]\nfactory = "a:b"', "m.toml:1: `name` is missing"),
    ('[[model]]\nname = "a/b"', "m.toml:2: `name` must be of letters, digits, '.', '_' and '-', not 'a/b'"),
    (MODEL, "m.toml:1: net: it says nothing of where the model is; give one of config, checkpoint, factory, hub"),
    (f'{MODEL}config = "."\nhub = "a/b"\ntask = "base"', "m.toml:4: net: `config` and `hub` exclude each other"),
    (f'{MODEL}config = "."\ntaks = "base"', "m.toml:4: unknown key `taks`; did you mean `task`?"),
    (f'{MODEL}config = "."', "m.toml:1: net: `task` is missing"),
    (
        f'{MODEL}config = "."\ntask = "causal_lm"',
        "m.toml:4: `task = 'causal_lm'` is unknown; did you mean 'causal-lm'?",
    ),
    (f'{MODEL}config = "nowhere"\ntask = "base"', "m.toml:3: `config`: there is no file nowhere"),
    (f'{MODEL}config = "nets.py"\ntask = "base"', "m.toml:3: `config`: nets.py is not JSON"),
    (f'{MODEL}config = "none.json"\ntask = "base"', 'm.toml:3: `config`: none.json has no "model_type"'),
    (f'{MODEL}checkpoint = "none"\ntask = "base"', "m.toml:3: `checkpoint`: there is no folder none"),
    (f'{MODEL}checkpoint = "bare"\ntask = "base"', "m.toml:3: `checkpoint`: bare has no *.safetensors"),
    (f'{MODEL}factory = "make"', "m.toml:3: `factory` must be"),
    (f'{MODEL}factory = "net.py:make"', "m.toml:3: `factory`: there is no file net.py"),
    (f'{MODEL}hub = "name"\ntask = "base"', 'm.toml:3: `hub` must be "org/name"'),
    (f'{MODEL}factory = "a:b"\ntrust_remote_code = true', "m.toml:4: `trust_remote_code` belongs to models with"),
    (f'{MODEL}config = "."\ntask = "base"\ndynamic = {{ x = {{ batch = 0 }} }}', "m.toml:5: `dynamic` belongs to"),
    (f'{MODEL}factory = "a:b"\n[model.dynamic]\nx = {{ time = 1 }}', "m.toml:4: `dynamic` must be a table"),
    (f'{MODEL}factory = "a:b"\ntask = "causal-lm"', "m.toml:4: to decode, tokens must vary"),
    (f'{MODEL}factory = "a:b"\nsizes = {{ batches = 3 }}', "m.toml:4: `sizes` must be"),
    (f'{MODEL}factory = "a:b"\nsizes = {{ size = 3 }}', "m.toml:4: `sizes` must be"),
    (f'{MODEL}factory = "a:b"\ntolerance = {{ rtol = 1e-3 }}', "m.toml:4: `tolerance` must be"),
    (f'{MODEL}factory = "a:b"\ndtypes = ["int8"]', "m.toml:4: `dtypes` must be a list of float64, float32"),
    (f'{MODEL}factory = "a:b"\ntier = "all"', "m.toml:4: `tier` must be one of smoke, pr, nightly, not 'all'"),
    (f'{MODEL}factory = "a:b"\npriority = -1', "m.toml:4: `priority` must be a number from 0 on, not -1"),
    (f'{MODEL}factory = "a:b"\n' * 2, "m.toml:5: 'net' is the name of a model at m.toml:1 as well"),
]


@pytest.mark.parametrize(("text", "words"), MISTAKES, ids=[words[:40] for _, words in MISTAKES])
def test_a_mistake_names_line_and_key_and_what_would_be_right(place, text, words):
    with pytest.raises(DeclarationError) as raised:
        read(place, text)
    assert str(raised.value).startswith(words)
    assert "\n" not in str(raised.value)


def test_names_are_unique_across_files(place):
    for name in ("a.toml", "b.toml"):
        (place / name).write_text(f'{MODEL}factory = "a:b"\n')
    with pytest.raises(DeclarationError, match=r"b\.toml:2: 'net' is the name of a model at a\.toml:1 as well"):
        declarations.load((str(place / "a.toml"), str(place / "b.toml")))


def test_reading_needs_no_torch():
    code = "import sys; from models.own import declarations; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
