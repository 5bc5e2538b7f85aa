"""Configs of transformers, shrunk."""

import pytest
import transformers

from models.zoo import rules, shrinking


@pytest.fixture(scope="module")
def rung():
    return rules.rules().rung[0]


def tiny(model_type, rung):
    from transformers import CONFIG_MAPPING

    return shrinking.shrink(CONFIG_MAPPING[model_type](), rung)


def test_only_what_differs_is_said(rung):
    changed = tiny("llama", rung)
    assert changed["hidden_size"] == 64
    assert changed["num_hidden_layers"] == 2
    assert not {"head_dim", "num_key_value_heads", "rms_norm_eps", "hidden_act"} & changed.keys()


def test_grouped_heads_stay_grouped(rung):
    changed = tiny("mistral", rung)
    assert changed["num_key_value_heads"] < changed["num_attention_heads"]


def test_both_kinds_of_attention_survive(rung):
    assert sorted(tiny("gemma3_text", rung)["layer_types"]) == ["full_attention", "sliding_attention"]


def test_special_tokens_stay_distinct_and_fit(rung):
    changed = tiny("qwen2_vl", rung)
    ids = [changed[name] for name in ("image_token_id", "video_token_id", "vision_start_token_id")]
    assert len(set(ids)) == 3
    assert all(192 <= i < 256 for i in ids)


def test_a_nested_config_says_its_type_and_what_the_parent_gave_it(rung):
    vision = tiny("llava", rung)["vision_config"]
    assert vision["model_type"] == "clip_vision_model"
    assert vision["patch_size"] == 14


def test_the_config_can_be_made_again(rung):
    config = transformers.CONFIG_MAPPING["llava"](**tiny("llava", rung))
    assert config.vision_config.image_size == 56
    assert config.text_config.vocab_size == 256


@pytest.mark.parametrize(("patch", "side"), [(16, 64), (14, 56), (32, 128), (4, 64), (None, 64), ([2, 4], 64)])
def test_images_are_four_by_four_patches_but_not_less_than_a_pyramid_needs(patch, side):
    assert shrinking.image_size(patch) == side


def test_an_indexer_keeps_enough_heads_for_its_scores_to_differ(rung):
    """Their sum over the heads is exactly 0 where all heads are cut off by a ReLU."""
    assert tiny("deepseek_v32", rung)["index_n_heads"] == 16
    assert tiny("hy_v4", rung).get("index_n_heads", 16) == 16


def test_an_indexer_of_groups_keeps_a_head_for_each(rung):
    text = tiny("minimax_m3_vl", rung)["text_config"]
    assert text["index_n_heads"] == text["num_key_value_heads"] == 2
