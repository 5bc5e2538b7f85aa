import pytest
import torch

from conformance.cases import NotBuildable, Options, Tier
from models import sources
from models.priority import entries, source


def test_all_are_in_the_pr_tier_and_what_writes_decodes():
    listed = {each.name: each for each in source.listed(Options())}
    assert list(listed) == [f"priority/{name}" for name in entries.entries()]
    assert {each.tier for each in listed.values()} == {Tier.PR}
    for name in ("llama-3.1-8b", "flan-t5-small", "bart-base", "whisper-tiny", "granite-vision-3.3-2b"):
        assert listed[f"priority/{name}"].decodes, name
    assert not listed["priority/bert-base"].decodes


@pytest.mark.parametrize("name", ["minilm-l6", "phi-2"])
def test_a_subject_runs_and_repeats(name):
    subject = sources.subject(f"priority/{name}", Options())
    model = subject.build(torch.float32, 0, False)
    inputs = subject.inputs(torch.float32, 0, 2, 65)
    assert inputs["input_ids"].shape == (2, 65)
    with torch.no_grad():
        first, second = model(**inputs)[0], model(**inputs)[0]
    assert torch.equal(first, second)
    assert bool(first.isfinite().all())


def test_tokens_lie_within_the_cut_vocabulary():
    subject = sources.subject("priority/roberta-base", Options())
    assert int(subject.inputs(torch.float32, 0, 8, 200)["input_ids"].max()) < 1049


@pytest.mark.parametrize("name", ["qwen3-0.6b", "bart-base"])
def test_decoding_models_name_their_cache(name):
    assert sources.subject(f"priority/{name}", Options()).cache_argument in entries.CACHES


def test_sizes_are_those_of_the_kind():
    assert sources.subject("priority/clip-vit-base-patch32", Options()).sizes.length == 77
    assert sources.subject("priority/bert-base", Options()).sizes == entries.TEXT


def test_an_unknown_name_is_refused_with_those_that_exist():
    with pytest.raises(ValueError, match=r"no priority model .*granite-3\.3-8b"):
        sources.subject("priority/gpt-9", Options())


def test_an_architecture_that_transformers_lacks_cannot_be_built(monkeypatch):
    entry = entries.Entry(of="x/y", read_from="a test", type="no_such_type", task="causal-lm", published={}, cut={})
    monkeypatch.setattr(entries, "entries", lambda: {"new": entry})
    with pytest.raises(NotBuildable, match="no_such_type"):
        source.subject("priority/new", Options())


@pytest.mark.parametrize("name", ["granite-3.3-8b", "qwen3-0.6b", "gemma-3-1b", "bert-base", "bart-base"])
def test_no_token_has_all_the_probability(name):
    """Tied embeddings as large as others would give the next token away, and hide what an error does to the rest."""
    subject = sources.subject(f"priority/{name}", Options())
    model = subject.build(torch.float32, 0, False)
    with torch.no_grad():
        logits = model(**subject.inputs(torch.float32, 0, 1, 65))["logits"]
    assert 0.05 < float(logits.std()) < 10
    assert float(logits.softmax(-1).amax(-1).median()) < 0.99


@pytest.mark.parametrize(
    ("name", "measured"), [("whisper-tiny", True), ("granite-vision-3.3-2b", True), ("vit-base", False)]
)
def test_what_writes_is_measured_by_its_tokens(name, measured):
    assert (sources.subject(f"priority/{name}", Options()).measure is not None) is measured
