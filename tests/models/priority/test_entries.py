"""What priority.toml says of models: that they are those that matter, cut in what may be cut only, and small enough."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.priority import entries
from models.zoo import recipe as recipes

# fmt: off
FAMILIES = [
    "granite-3.3", "granite-4.0-h", "granite-4.1", "granite-speech", "granite-vision", "llama-3.1", "mistral",
    "ministral", "qwen2.5", "qwen3", "gpt-oss", "gemma-3", "gemma-4", "phi", "deepseek-v3", "bert", "roberta",
    "mpnet", "minilm", "xlm-roberta", "vit", "clip", "siglip", "whisper", "flan-t5", "bart", "bamba", "nemotron",
]
# fmt: on

HEADS = {
    # name: (elements of a head, heads that share a key) of the real model
    "granite-3.3-8b": (128, 4),
    "granite-4.0-h-350m": (64, 3),
    "granite-4.0-h-tiny": (128, 3),
    "granite-4.1-3b": (64, 5),
    "granite-4.1-8b": (128, 4),
    "granite-speech-3.3-2b": (64, 4),
    "granite-vision-3.3-2b": (64, 4),
    "llama-3.1-8b": (128, 4),
    "mistral-7b-v0.1": (128, 4),
    "ministral-8b-2410": (128, 4),
    "ministral-3-8b": (128, 4),
    "qwen2.5-0.5b": (64, 7),
    "qwen3-0.6b": (128, 2),
    "qwen3-30b-a3b": (128, 8),
    "gpt-oss-20b": (64, 8),
    "gemma-3-1b": (256, 4),
    "gemma-3-4b": (256, 2),
    "gemma-4-e2b": (256, 8),
    "gemma-4-31b": (256, 2),
    "phi-2": (80, 1),
    "phi-3-mini-4k": (96, 1),
    "phi-4-mini": (128, 3),
    "bamba-9b": (128, 4),
    "nemotron-nano-9b-v2": (128, 5),
    "bert-base": (64, 1),
    "roberta-base": (64, 1),
    "xlm-roberta-base": (64, 1),
    "mpnet-base": (64, 1),
    "minilm-l6": (32, 1),
    "flan-t5-small": (64, 1),
    "bart-base": (64, 1),
    "vit-base": (64, 1),
    "whisper-tiny": (64, 1),
}

# fmt: off
WIDTHS = frozenset(
    {
        "hidden_size", "intermediate_size", "shared_intermediate_size", "moe_intermediate_size", "d_model",
        "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "vocab_size", "vocab_size_per_layer_input", "hidden_dim",
        "encoder_hidden_size", "projection_size", "q_lora_rank", "image_size",
    }
)
COUNTS = frozenset(
    {
        "num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers",
        "num_attention_heads", "num_key_value_heads", "num_global_key_value_heads", "encoder_attention_heads",
        "decoder_attention_heads", "num_heads", "num_local_experts", "num_experts", "n_routed_experts",
        "mamba_n_heads", "mamba_num_heads", "n_groups", "first_k_dense_replace", "num_kv_shared_layers",
    }
)
SAMPLED = frozenset(
    {
        "layer_types", "attn_layer_indices", "hybrid_override_pattern", "vision_feature_layer",
        "image_grid_pinpoints", "mamba_chunk_size", "chunk_size",
    }
)
# fmt: on
SWITCHED_OFF = frozenset({"has_lora_adapter"})
STICK = 64

NAMES = list(entries.entries())


def configs(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(published, cut) of a model and of the configs in it."""
    entry = entries.entries()[name]
    nested = [key for key, value in entry.cut.items() if isinstance(value, dict)]
    return [(entry.published, {k: v for k, v in entry.cut.items() if k not in nested})] + [
        (entry.published[key], entry.cut[key]) for key in nested
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_there(family):
    assert any(name.startswith(family) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_only_sizes_are_cut(name):
    for _, cut in configs(name):
        others = set(cut) - WIDTHS - COUNTS - SAMPLED - SWITCHED_OFF
        assert all(field.endswith(("_token_id", "_token_index")) for field in others), others


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_larger_than_in_the_real_model(name):
    for published, cut in configs(name):
        for field in (set(cut) & (WIDTHS | COUNTS)) - {"num_kv_shared_layers"}:
            assert cut[field] <= published[field], field


@pytest.mark.parametrize("name", NAMES)
def test_widths_fill_sticks_where_the_real_ones_do_and_only_there(name):
    """The image is no width of a tensor that is multiplied: its tokens are not multiples of a stick either way."""
    for published, cut in configs(name):
        for field in (set(cut) & WIDTHS) - {"image_size"}:
            assert cut[field] % STICK == published[field] % STICK, field


def heads(config: dict[str, Any]) -> tuple[int, int]:
    """(elements of a head, heads that share a key)."""
    text = config.get("text_config", config)
    width = text.get("hidden_size") or text["d_model"]
    count = text.get("num_attention_heads") or text.get("decoder_attention_heads") or text["num_heads"]
    return text.get("head_dim") or text.get("d_kv") or width // count, count // text.get("num_key_value_heads", count)


@pytest.mark.parametrize("name", sorted(HEADS))
def test_heads_are_those_of_the_real_model(name):
    entry = entries.entries()[name]
    assert heads(entry.published) == HEADS[name]
    assert heads(entries.merged(entry.published, entry.cut)) == HEADS[name]


@pytest.mark.parametrize("part", ["text_config", "vision_config"])
@pytest.mark.parametrize(
    ("name", "elements"), [("clip-vit-base-patch32", {"text_config": 64, "vision_config": 64}), ("siglip-so400m", 72)]
)
def test_heads_of_two_towers(name, elements, part):
    entry = entries.entries()[name]
    expected = elements if isinstance(elements, int) else elements[part]
    for config in (entry.published, entries.merged(entry.published, entry.cut)):
        assert heads(config[part])[0] == expected


def test_latent_attention_keeps_its_ranks_and_heads():
    entry = entries.entries()["deepseek-v3"]
    config = entries.merged(entry.published, entry.cut)
    assert [config[f] for f in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")] == [
        512,
        128,
        64,
        128,
    ]


@pytest.mark.parametrize("name", ["granite-4.0-h-350m", "granite-4.0-h-tiny", "bamba-9b", "nemotron-nano-9b-v2"])
def test_hybrids_keep_one_of_each_kind_of_layer(name):
    entry = entries.entries()[name]
    config = entries.merged(entry.published, entry.cut)
    if "hybrid_override_pattern" in config:
        assert set(config["hybrid_override_pattern"]) == set(entry.published["hybrid_override_pattern"])
        return
    kinds = config.get("layer_types") or [i in config["attn_layer_indices"] for i in range(config["num_hidden_layers"])]
    assert len(set(kinds)) == 2
    inner = config["mamba_expand"] * config["hidden_size"]
    assert inner == config["mamba_n_heads"] * config["mamba_d_head"]


@pytest.mark.parametrize("name", [name for name in NAMES if "layer_types" in entries.entries()[name].published])
def test_lists_of_layers_are_as_long_as_the_model_is_deep_and_keep_one_of_each_kind(name):
    entry = entries.entries()[name]
    published, cut = entry.published["layer_types"], entry.cut["layer_types"]
    assert len(published) == entry.published["num_hidden_layers"]
    assert len(cut) == entry.cut["num_hidden_layers"]
    assert set(cut) == set(published)


@pytest.mark.parametrize("name", NAMES)
def test_each_says_where_its_fields_were_read(name):
    assert entries.entries()[name].read_from.strip()


@pytest.mark.parametrize("name", NAMES)
def test_models_are_small_and_still_large_enough_to_show_tiles(name):
    recipe = entries.recipe(entries.entries()[name])
    with torch.device("meta"):
        model = recipes.model_class(recipe.model_type, recipe.class_name)(recipes.config(recipe))
    count = sum(p.numel() for p in model.parameters())
    assert 1_000_000 < count <= entries.MAX_PARAMETERS


def test_sizes_pass_sticks():
    assert entries.TEXT.length % STICK == 0
    assert any(length % STICK for length in entries.TEXT.lengths)
    assert entries.TEXT.prompt > STICK
    assert entries.TEXT.prompt + entries.TEXT.steps > 2 * STICK
