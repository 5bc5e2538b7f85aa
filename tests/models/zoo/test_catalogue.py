"""What is derived, and that it is derived once."""

import os
import signal
import time

import pytest
import torch

from models.zoo import catalogue, derivation, exceptions, forked, recipe, trial
from models.zoo.catalogue import Outcome


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    catalogue.recipe.cache_clear()
    yield
    catalogue.recipe.cache_clear()


@pytest.mark.parametrize(
    ("model_type", "task", "modalities"),
    [
        ("llama", "causal-lm", {"text"}),
        ("mamba2", "causal-lm", {"text"}),
        ("t5", "seq2seq-lm", {"text"}),
        ("vit", "image-classification", {"image"}),
        ("llava", "image-text-to-text", {"text", "image"}),
        ("whisper", "speech-seq2seq", {"audio", "text"}),
    ],
)
def test_an_architecture_is_derived_with_all_its_modalities(model_type, task, modalities):
    found = derivation.derive(model_type, task)
    assert set(found.modalities) == modalities
    assert found.left_out == ()
    assert 0 < found.parameters < 1_000_000
    assert found.lengths == (model_type != "vit")
    assert bool(found.cache_argument) == (model_type != "vit")
    model = recipe.build(found)
    length = 24 if found.lengths else 16
    assert all(bool(t.isfinite().all()) for t in trial.forward(model, found, 3, length) if t.is_floating_point())


def test_a_sparse_attention_has_no_choice_among_equal_scores():
    """It would be judged by how it is made, and not by the backend."""
    assert derivation.derive("deepseek_v32", "causal-lm").ties == ""


def test_what_cannot_be_derived_says_why():
    with pytest.raises(derivation.NotDerivable, match="natten"):
        derivation.derive("dinat", "image-classification")
    with pytest.raises(KeyError):
        derivation.derive("llama", "no-such-task")


def test_a_recipe_is_derived_once_and_comes_back_the_same(monkeypatch):
    found = catalogue.recipe("gpt2", "causal-lm")
    catalogue.recipe.cache_clear()
    monkeypatch.setattr(catalogue, "derived", lambda *a: pytest.fail("derived again"))
    assert catalogue.recipe("gpt2", "causal-lm") == found
    assert [file.name for file in catalogue.folder().iterdir()] == ["gpt2@causal-lm.json"]


def test_failures_are_kept_with_their_reason(monkeypatch):
    monkeypatch.setattr(catalogue, "derived", lambda *a: Outcome(reason="needs the package x"))
    for _ in range(2):
        with pytest.raises(derivation.NotDerivable, match="needs the package x"):
            catalogue.recipe("gpt2", "causal-lm")
        monkeypatch.setattr(catalogue, "derived", lambda *a: pytest.fail("derived again"))


def test_the_key_follows_the_packages(monkeypatch):
    before = catalogue.key.__wrapped__()
    assert catalogue.key.__wrapped__() == before
    monkeypatch.setattr(catalogue, "_version", lambda name: "9.9")
    assert catalogue.key.__wrapped__() != before


@pytest.mark.parametrize(
    ("work", "end"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda: bytes(1 << 40), "memory"),
        (lambda: time.sleep(60), "more than 1 s"),
        (lambda: 1 // 0, "exited with 1"),
    ],
)
def test_a_child_that_dies_says_how(work, end):
    with pytest.raises(forked.Died, match=end):
        forked.call(work, seconds=1)


def test_a_child_answers():
    assert forked.call(lambda: str(torch.ones(3).sum().item()).encode() * 50_000, seconds=20) == b"3.0" * 50_000


def test_what_is_declared_of_an_architecture_derives_no_other_again(monkeypatch):
    before = {name: catalogue.stem(name, "causal-lm") for name in ("gpt2", "llama")}
    one = {"gpt2": exceptions.Entry(reason="shallow", config={"n_layer": 1})}
    monkeypatch.setattr(exceptions, "entries", lambda: one)
    assert catalogue.stem("gpt2", "causal-lm") != before["gpt2"]
    assert catalogue.stem("llama", "causal-lm") == before["llama"]
