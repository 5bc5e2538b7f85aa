"""Inputs and models, made of recipes."""

import pytest
import torch
from torch import nn

from models.zoo import architectures, recipe, weights
from models.zoo.recipe import InputSpec, Recipe


@pytest.mark.parametrize(
    ("dim", "expected"),
    [(7, 7), ("batch", 2), ("length", 10), ("4*batch", 8), ("length+3", 13), ("320*length+400", 3600)],
)
def test_a_dimension_is_a_number_or_a_multiple_of_batch_or_length(dim, expected):
    assert recipe.size(dim, 2, 10) == expected


@pytest.mark.parametrize("dim", ["batch*length", "-1", "width", "length-1"])
def test_another_dimension_is_an_error(dim):
    with pytest.raises(ValueError, match="a dimension is"):
        recipe.size(dim, 2, 10)


def made(spec, **sizes):
    whole = Recipe(model_type="bert", task="base", class_name="BertModel", config={}, inputs={"x": spec})
    return recipe.inputs(whole, **sizes)["x"]


def test_placeholders_come_first_and_ids_keep_to_their_range():
    ids = made(InputSpec("ids", ("batch", "length+3"), low=5, high=9, runs=((200, 2), (7, 1))), batch=2, length=4)
    assert ids.shape == (2, 7)
    assert ids[:, :3].tolist() == [[200, 200, 7]] * 2
    assert ids[:, 3:].min() >= 5
    assert ids[:, 3:].max() < 9


def test_constants_are_the_same_in_every_row():
    grid = made(InputSpec("constant", ("batch", 3), value=[1, 4, 4]), batch=2)
    assert grid.tolist() == [[1, 4, 4]] * 2
    assert made(InputSpec("constant", value=False)) is False


def test_boxes_have_their_corners_in_order():
    boxes = made(InputSpec("boxes", ("batch", "length", 4), high=1000))
    assert bool((boxes[..., 2:] >= boxes[..., :2]).all())
    assert boxes.max() < 1000


def test_inputs_follow_seed_and_dtype():
    spec = InputSpec("floats", ("batch", 8), "float")
    assert torch.equal(made(spec, seed=1), made(spec, seed=1))
    assert not torch.equal(made(spec, seed=1), made(spec, seed=2))
    assert made(spec, dtype=torch.bfloat16).dtype == torch.bfloat16


BERT = Recipe(
    model_type="bert",
    task="masked-lm",
    class_name="BertForMaskedLM",
    config={
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "vocab_size": 256,
    },
    inputs={"input_ids": InputSpec("ids", ("batch", "length"), low=5, high=250)},
)


def test_a_model_is_the_same_for_the_same_seed_and_says_something():
    before = torch.random.get_rng_state()
    model, again, other = recipe.build(BERT), recipe.build(BERT), recipe.build(BERT, seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert not torch.are_deterministic_algorithms_enabled()
    assert not model.training
    with torch.no_grad():
        logits = [m(**recipe.inputs(BERT)).logits for m in (model, again, other)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])
    assert 0.1 < float(logits[0].std()) < 10


def test_a_switch_that_is_off_at_first_is_drawn():
    """Doge's: while it is zero, all its masks are equal."""
    module = nn.Module()
    module.A = nn.Parameter(torch.zeros(4))
    module.A_log = nn.Parameter(torch.zeros(4))
    weights.draw(module, 0)
    assert module.A.unique().numel() == 4
    assert not module.A_log.any()


def test_a_model_in_another_dtype_has_the_same_weights_rounded():
    single, half = recipe.build(BERT), recipe.build(BERT, dtype=torch.bfloat16)
    for (name, a), (_, b) in zip(single.named_parameters(), half.named_parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16), b), name


def test_the_table_of_tasks_names_all_that_transformers_has():
    from transformers.models.auto import modeling_auto

    tables = {name for name in dir(modeling_auto) if name.startswith("MODEL_") and name.endswith("NAMES")}
    assert tables <= set(architectures.TASKS.values())


def test_the_main_task_says_most():
    known = architectures.architectures()
    mains = {t: known[t].main_task for t in ("llama", "bert", "bart", "whisper", "llava", "vit")}
    assert mains == {
        "llama": "causal-lm",
        "bert": "masked-lm",
        "bart": "seq2seq-lm",
        "whisper": "speech-seq2seq",
        "llava": "image-text-to-text",
        "vit": "image-classification",
    }
    with pytest.raises(KeyError, match="'vit' and task 'causal-lm'"):
        architectures.class_name("vit", "causal-lm")
