"""How models are called, and when two greedy texts agree."""

from __future__ import annotations

import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import drives
from models.drives import Greedy


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (([1, 2, 3], [1.0, 1.0, 1.0]), ([1, 2, 3], [1.0, 1.0, 1.0]), True),
        (([1, 2, 3], [1.0, 1.0, 1.0]), ([1, 2, 4], [1.0, 1.0, 1.0]), False),
        (([1, 2, 3], [1.0, 1e-9, 1.0]), ([1, 9, 8], [1.0, 1e-9, 1.0]), True),  # a tie, and after it another text
        (([1, 2, 3], [1.0, 1.0, 1e-9]), ([1, 9, 8], [1.0, 1.0, 1e-9]), False),  # it parted before the tie
        (([1, 2, 3], [1.0, 1e-9, 1.0]), ([1, 9, 8], [1.0, 1.0, 1.0]), True),  # one side alone is sure enough of it
    ],
)
def test_texts_agree_up_to_the_first_tie(left, right, equal):
    one, other = (Greedy([tokens], [margins], 1e-3) for tokens, margins in (left, right))
    assert (one == other) is equal
    assert (other == one) is equal


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0.01, 5)), min_size=1, max_size=20))
def test_a_text_agrees_with_itself_and_with_no_other_where_nothing_is_tied(steps):
    tokens, margins = [t for t, _ in steps], [m for _, m in steps]
    text = Greedy([tokens], [margins], 1e-3)
    assert text == Greedy([list(tokens)], [list(margins)], 1e-3)
    other = [*tokens[:-1], tokens[-1] + 1]
    assert text != Greedy([other], [margins], 1e-3)


def test_all_rows_must_agree():
    rows = [[1, 2], [3, 4]]
    sure = [[1.0, 1.0], [1.0, 1.0]]
    assert Greedy(rows, sure, 1e-3) != Greedy([[1, 2], [3, 5]], sure, 1e-3)
    assert Greedy(rows, sure, 1e-3) != rows


class Counter(torch.nn.Module):
    """The next token is the last one plus one; the cache is the number of tokens so far."""

    def __init__(self, wrong_at=None):
        super().__init__()
        self.calls, self.wrong_at = [], wrong_at

    def forward(self, input_ids, use_cache, past=None):
        self.calls.append((tuple(input_ids.shape), past))
        total = (past or 0) + input_ids.shape[1]
        logits = torch.nn.functional.one_hot((input_ids + 1) % 11, 11).float()
        if self.wrong_at is not None and total > self.wrong_at:
            logits = logits.roll(1, -1)
        return {"logits": logits, "past": total}


def run(model, tokens, **more):
    return drives.decode(model, input_ids=tokens, prompt=3, free=4, cache_argument="past", make_cache=None, **more)


def test_decoding_prefills_and_then_takes_one_token_at_a_time():
    tokens = torch.tensor([[4, 7, 1, 3, 9], [0, 2, 2, 5, 6]])
    model = Counter()
    out = run(model, tokens)
    assert model.calls == [
        ((2, 3), None), ((2, 1), 3), ((2, 1), 4),  # teacher-forced
        ((2, 3), None), ((2, 1), 3), ((2, 1), 4), ((2, 1), 5), ((2, 1), 6),
    ]  # fmt: skip
    assert out["prefill"].shape == (2, 3, 11)
    assert out["steps"].argmax(-1).tolist() == [[4, 10], [6, 7]]
    assert out["greedy"].tokens == [[2, 3, 4, 5], [3, 4, 5, 6]]


def test_inputs_go_to_the_calls_that_are_named():
    class Translator(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = []

        def forward(self, decoder_input_ids=None, past=None, **inputs):
            self.calls.append((None if decoder_input_ids is None else tuple(decoder_input_ids.shape), sorted(inputs)))
            if decoder_input_ids is None:
                return {"last_hidden_state": inputs["source"] * 2}
            logits = torch.nn.functional.one_hot((decoder_input_ids + 1) % 11, 11).float()
            return {"logits": logits + inputs["encoder_outputs"]["last_hidden_state"], "past": (past or 0) + 1}

    sizes = []

    def make_cache(encoded):
        sizes.append(encoded["last_hidden_state"].shape)
        return 0

    model = Translator()
    out = drives.decode(
        model,
        calls=drives.Calls("decoder_input_ids", encoder=("source", "mask"), prefill=("mask", "image"), steps=("mask",)),
        prompt=2,
        free=1,
        cache_argument="past",
        make_cache=make_cache,
        decoder_input_ids=torch.tensor([[1, 2, 3]]),
        source=torch.ones(1, 1, 11),
        mask=torch.ones(1, 1),
        image=torch.ones(1, 1),
    )
    prefill = ((1, 2), ["encoder_outputs", "image", "mask", "use_cache"])
    step = ((1, 1), ["encoder_outputs", "mask", "use_cache"])
    assert model.calls == [(None, ["mask", "source"]), prefill, step, prefill, step]
    assert sizes == 2 * [torch.Size((1, 1, 11))]
    assert torch.equal(out["encoder"]["last_hidden_state"], torch.full((1, 1, 11), 2.0))
    assert out["steps"].argmax(-1).tolist() == [[4]]


def test_a_model_that_fails_past_a_length_writes_another_text():
    tokens = torch.tensor([[4, 7, 1, 3, 9]])
    assert run(Counter(), tokens)["greedy"] != run(Counter(wrong_at=5), tokens)["greedy"]


def test_training_gives_losses_gradients_and_parameters():
    model = torch.nn.Linear(3, 2)
    x = torch.ones(4, 3)
    before = model.weight.detach().clone()

    def called(**inputs):
        return model(inputs["x"])

    handle = types.SimpleNamespace(named_parameters=model.named_parameters)

    class Compiled:
        named_parameters = staticmethod(lambda: ((f"_orig_mod.{n}", p) for n, p in handle.named_parameters()))

        def __call__(self, **inputs):
            return called(**inputs)

    out = drives.train(Compiled(), steps=3, rate=0.1, labels="", x=x)
    assert out["loss"].shape == (3,)
    assert bool((out["loss"].diff() < 0).all())
    assert set(out["gradients"]) == set(out["parameters"]) == {"weight", "bias"}
    assert not torch.equal(out["parameters"]["weight"], before)
    assert model.weight.grad is None


def test_decoding_asks_the_device_for_nothing_but_the_model():
    """What ran on the host is laid to the model, and ranked by `conformance unlock`."""
    import spyre_backend

    logits = torch.randn(2, 5, 11, generator=torch.Generator().manual_seed(0)).to("spyre")

    def model(input_ids, use_cache, past=None):
        return {"logits": logits[:, : input_ids.shape[1]], "past": past}

    with spyre_backend.count_fallbacks() as fallbacks:
        out = run(model, torch.tensor([[4, 7, 1, 3, 9], [0, 2, 2, 5, 6]]).to("spyre"))
    assert dict(fallbacks) == {}
    assert out["steps"].device.type == "spyre"
    assert torch.equal(out["steps"].cpu(), logits[:, :1].cpu().expand(2, 2, 11))
