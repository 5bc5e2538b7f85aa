"""How models write token by token: which call gets what, with which cache, and what has no reference."""

from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")

from conformance import execute
from conformance.backends.eager import EagerBackend
from conformance.cases import Case, Direction, NotBuildable, Options, ShapeMode
from conformance.outcomes import Outcome
from models import generation, samples, sources
from models.decoding import LANES
from models.subjects import Sizes, Subject

ENCODER_DECODERS = ["t5.seq2seq-lm", "bart.seq2seq-lm", "whisper.speech-seq2seq"]
SIZES = Sizes(prompt=3, steps=4, free=2)


def case(name, lane="dynamic-cache"):
    return Case("decode", name, "float32", ShapeMode.AUTOMATIC, Direction.FORWARD, lane)


def sample_of(name, lane="dynamic-cache", **changes):
    subject = dataclasses.replace(sources.subject(name, Options()), **changes)
    return next(samples.of_decoding(case(name, lane), subject, 0))


def written(sample):
    return sample.drive(copy.deepcopy(sample.fn), **sample.kwargs)


# --- models of transformers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_steps_of_an_encoder_decoder_give_what_one_forward_gives(name, lane):
    sample = sample_of(name, lane)
    made = written(sample)
    model = sources.subject(name, Options()).build(torch.float32, 0, False)
    with torch.no_grad():
        whole = model(**sample.kwargs)
    torch.testing.assert_close(made["encoder"]["last_hidden_state"], whole["encoder_last_hidden_state"])
    steps = torch.cat([made["prefill"], made["steps"]], 1)
    assert steps.shape[1] == 80
    torch.testing.assert_close(steps, whole["logits"], rtol=0, atol=1e-4 * float(whole["logits"].std()))
    assert [row[0] for row in made["greedy"].tokens] == made["prefill"][:, -1].argmax(-1).tolist()


def test_the_encoder_runs_once_and_a_start_token_is_first():
    sample = sample_of("bart.seq2seq-lm")
    model = copy.deepcopy(sample.fn)
    runs = []
    model.get_encoder().register_forward_pre_hook(lambda *_: runs.append(1))
    sample.drive(model, **sample.kwargs)
    assert len(runs) == 1
    assert sample.kwargs["decoder_input_ids"][:, 0].tolist() == [model.config.decoder_start_token_id] * 2


@pytest.mark.parametrize("lane", LANES)
def test_what_takes_images_sees_them_in_the_prefill(lane):
    sample = sample_of("llava.image-text-to-text", lane)
    model = copy.deepcopy(sample.fn)
    seen = []
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append("pixel_values" in kwargs), with_kwargs=True)
    made = sample.drive(model, **sample.kwargs)
    assert made["prefill"].shape[1] > 10  # the places of the image are in it
    assert made["steps"].shape[1] == 70
    assert seen == [True] + 70 * [False] + [True] + 24 * [False]


@pytest.mark.parametrize(
    ("name", "lane", "reason"),
    [
        ("vit.image-classification", "dynamic-cache", "takes no cache"),
        ("blip.image-text-to-text", "dynamic-cache", "takes no cache"),
        ("mamba.causal-lm", "static-cache", "cache of a kind|makes its own cache"),
        ("fsmt.seq2seq-lm", "dynamic-cache", "other logits than in one forward, by 2"),
        ("led.seq2seq-lm", "static-cache", "other logits than in one forward, by 1"),
    ],
)
def test_what_does_not_decode_so_is_left_out_with_the_reason(name, lane, reason):
    with pytest.raises(NotBuildable, match=reason):
        sample_of(name, lane)


def test_an_encoder_is_one_graph_more():
    allowed = {
        (name, lane): sample_of(name, lane, sizes=SIZES).budgets.recompiles
        for name in ("llama.causal-lm", "t5.seq2seq-lm")
        for lane in LANES
    }
    assert list(allowed.values()) == [2, 1, 3, 2]


# --- backends that break the caches -----------------------------------------------------------------------------------


class Forgets(EagerBackend):
    """Loses what one of the two caches holds, in each step after the prefill."""

    def __init__(self, which):
        self.which = which

    def compile(self, fn, *, dynamic, fullgraph=False):
        def run(**inputs):
            if inputs.get("decoder_input_ids", torch.empty(0, 0)).shape[1] == 1:
                for layer in getattr(inputs["cache"], self.which).layers:
                    layer.values = torch.zeros_like(layer.values)
            return fn(**inputs)

        return run


class EncodesWrongly(EagerBackend):
    def compile(self, fn, *, dynamic, fullgraph=False):
        def run(**inputs):
            made = fn(**inputs)
            if "encoder_outputs" not in inputs:
                made["last_hidden_state"] = made["last_hidden_state"] * 1.01
            return made

        return run


@pytest.mark.parametrize(
    ("backend", "where", "name"),
    [
        *((Forgets("cross_attention_cache"), "output['steps']", name) for name in ENCODER_DECODERS),
        (Forgets("self_attention_cache"), "output['steps']", "t5.seq2seq-lm"),
        (EncodesWrongly(), "output['encoder']", "t5.seq2seq-lm"),
    ],
)
def test_a_backend_that_breaks_a_part_of_it_is_caught(backend, where, name):
    record = execute.run_sample(backend, case(name), sample_of(name, sizes=SIZES), suite="decode")
    assert record.outcome is Outcome.WRONG
    assert where in record.message.splitlines()[0]


def test_a_backend_that_computes_it_is_right():
    sample = sample_of("t5.seq2seq-lm", sizes=SIZES)
    record = execute.run_sample(EagerBackend(), case("t5.seq2seq-lm"), sample, suite="decode")
    assert record.outcome is Outcome.PASS
    assert record.measurements["greedy_agreement"] == 1.0


# --- models that are asked --------------------------------------------------------------------------------------------


class Encoder(torch.nn.Module):
    def forward(self, input_ids):
        return {"last_hidden_state": input_ids.float()}


class Translator(torch.nn.Module):
    """The next token is the last one plus one; its cache counts tokens, and its logits may be off by that."""

    def __init__(self, off=0.0):
        super().__init__()
        self.encoder, self.head = Encoder(), torch.nn.Linear(1, 1)
        self.config = SimpleNamespace(bos_token_id=5)
        self.off = off

    def get_encoder(self):
        return self.encoder

    def forward(self, input_ids=None, decoder_input_ids=None, encoder_outputs=None, use_cache=None, cache=None):
        logits = torch.nn.functional.one_hot((decoder_input_ids + 1) % 11, 11).float()
        return {"logits": logits + self.off * (cache or 0), "cache": (cache or 0) + decoder_input_ids.shape[1]}


def inputs_of(length):
    ids = torch.arange(2 * length).reshape(2, length) % 11
    return {"input_ids": ids, "decoder_input_ids": ids, "decoder_attention_mask": torch.ones_like(ids)}


def test_arguments_go_where_generate_passes_them():
    found = generation.asked(Translator(), inputs_of, SIZES)
    assert found.encodes
    assert found.calls.encoder == ("input_ids",)
    assert found.calls.prefill == found.calls.steps == ()
    assert found.inputs["input_ids"].shape == (2, 16)
    assert found.inputs["decoder_input_ids"].shape == (2, 7)
    assert found.inputs["decoder_input_ids"][:, 0].tolist() == [5, 5]
    assert set(found.inputs) == {"input_ids", "decoder_input_ids"}


def without_encoder():
    made = Translator()
    made.get_encoder = lambda: made
    return made


@pytest.mark.parametrize(
    ("model", "inputs", "reason"),
    [
        (Translator(), lambda n: {"input_ids": inputs_of(n)["input_ids"]}, "no decoder_input_ids"),
        (Translator(), lambda n: {**inputs_of(n), "decoder_input_ids": torch.ones(2, n, 9)}, "has 3 dimensions"),
        (Translator(), lambda n: inputs_of(6), "decoder_input_ids are 6 always"),
        (Translator(), lambda n: {"decoder_input_ids": inputs_of(n)["decoder_input_ids"]}, "takes none of its"),
        (without_encoder(), inputs_of, "which part of it is the encoder"),
        (torch.nn.Linear(1, 1), lambda n: {"pixel_values": torch.ones(2, 3)}, "no input_ids"),
    ],
)
def test_what_cannot_be_asked_to_write_says_why(model, inputs, reason):
    with pytest.raises(NotBuildable, match=reason):
        generation.asked(model, inputs, SIZES)


def subject(model):
    return Subject(
        "translator",
        lambda dtype, seed, training: model,
        lambda dtype, seed, batch, length: inputs_of(length),
        cache_argument="cache",
        sizes=SIZES,
    )


def test_a_model_that_decodes_in_another_way_is_no_reference():
    next(samples.of_decoding(case("translator"), subject(Translator()), 0))
    with pytest.raises(NotBuildable, match=r"other logits than in one forward, by \d"):
        next(samples.of_decoding(case("translator"), subject(Translator(off=1.0)), 0))


def test_a_model_that_returns_no_cache_does_not_decode():
    class Forgetful(Translator):
        def forward(self, input_ids=None, decoder_input_ids=None, encoder_outputs=None, use_cache=None, cache=None):
            return {"logits": super().forward(input_ids, decoder_input_ids)["logits"]}

    with pytest.raises(NotBuildable, match="on the CPU either: KeyError: 'cache'"):
        next(samples.of_decoding(case("translator"), subject(Forgetful()), 0))


def test_a_model_that_encodes_when_asked_keeps_its_names():
    model = Translator()
    made = copy.deepcopy(generation.encoding(model))
    assert type(made).__name__ == "Translator"
    assert [name for name, _ in made.named_modules()] == [name for name, _ in model.named_modules()]
    ids = torch.ones(2, 3, dtype=torch.long)
    assert made(input_ids=ids)["last_hidden_state"].shape == (2, 3)
    assert made(decoder_input_ids=ids, encoder_outputs=(ids,))["logits"].shape == (2, 3, 11)
