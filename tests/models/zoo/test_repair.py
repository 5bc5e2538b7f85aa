"""Inputs that get better with each error."""

import pytest

from models.zoo import layouts, repair
from models.zoo.facts import Facts
from models.zoo.recipe import InputSpec


def context(parameters=("input_ids", "pixel_values", "attention_mask", "bbox"), **config):
    from transformers import PreTrainedConfig

    made = PreTrainedConfig()
    for name, value in config.items():
        setattr(made, name, value)
    return repair.Context(Facts(made), dict.fromkeys(parameters, False))


IMAGE = {"pixel_values": layouts.floats("batch", 3, 64, 64)}
TEXT = {
    "input_ids": InputSpec("ids", ("batch", "length"), low=1, high=200),
    "attention_mask": layouts.ones("batch", "length"),
}


def first(error, specs, known):
    return next(repair.repairs(error, specs, known), None)


@pytest.mark.parametrize(
    ("message", "shape"),
    [
        ("expected input[2, 3, 64, 64] to have 1 channels, but got 3 channels instead", ("batch", 1, 64, 64)),
        ("Input image size (64*64) doesn't match model (32*48).", ("batch", 3, 32, 48)),
        ("mat1 and mat2 shapes cannot be multiplied (384x64 and 128x16)", ("batch", 3, 64, 128)),
        ("Given normalized_shape=[96], expected input with shape [*, 96], but got input of size[2, 3, 64, 64]",
         ("batch", 3, 64, 96)),
        ("The size of tensor a (64) must match the size of tensor b (16) at non-singleton dimension 3",
         ("batch", 3, 64, 16)),
    ],
)  # fmt: skip
def test_shapes_follow_what_the_message_says(message, shape):
    assert first(RuntimeError(message), IMAGE, context())["pixel_values"].shape == shape


def test_as_many_placeholders_as_features():
    error = ValueError("Image features and image tokens do not match, tokens: 0, features: 8")
    better = first(error, {**TEXT, **IMAGE}, context(image_token_id=250))
    assert better["input_ids"].runs == ((250, 4),)
    assert better["input_ids"].shape == better["attention_mask"].shape == ("batch", "length+4")


def test_what_is_asked_for_by_name_is_added():
    assert "bbox" in first(ValueError("You have to specify bbox"), TEXT, context())


def test_what_was_none_on_the_way_is_added():
    def forward(bbox=None):
        return bbox.shape

    with pytest.raises(AttributeError) as caught:
        forward()
    assert "bbox" in first(caught.value, TEXT, context())


def test_what_a_part_does_not_take_is_left_out():
    error = TypeError("forward() got an unexpected keyword argument 'attention_mask'")
    assert "attention_mask" not in first(error, TEXT, context())


def test_an_error_that_says_nothing_teaches_nothing():
    assert first(RuntimeError("no"), TEXT, context()) is None


@pytest.mark.parametrize(
    ("parameters", "main", "expected"),
    [
        ({"input_ids": False, "attention_mask": False}, ("input_ids",), ["input_ids"]),
        (
            {"input_ids": False, "pixel_values": False, "pixel_values_videos": False},
            ("input_ids",),
            ["input_ids", "pixel_values"],
        ),
        ({"pixel_values_videos": True}, ("pixel_values_videos",), ["pixel_values_videos"]),
        ({"hidden_states": True, "grid_thw": True}, (), ["hidden_states", "grid_thw"]),
    ],
)
def test_what_is_required_and_one_of_each_modality_is_passed(parameters, main, expected):
    assert layouts.wanted(parameters, main, encoder_decoder=False) == expected


def test_free_ids_avoid_what_means_something():
    facts = context(vocab_size=256, eos_token_id=2, image_token_id=250, pad_token_id=0).facts
    assert facts.free_ids(256) == (3, 250)
