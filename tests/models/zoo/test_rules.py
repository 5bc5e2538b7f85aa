"""What rules make of fields, layers of lists, and relations of what belongs together."""

import pytest

from models.zoo import layers, relations, rules
from models.zoo.rules import Rung

UNIFORM = Rung("uniform", scale=0.0625)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("hidden_size", 4096, 64),
        ("hidden_size", 32, 64),  # absolute: what must be equal stays equal
        ("num_attention_heads", 32, 4),
        ("intermediate_size", 11008, 128),
        ("moe_intermediate_size", 1408, 32),
        ("num_experts", 2, 2),  # at most 4
        ("num_local_experts", 64, 4),
        ("vocab_size", 32000, 256),
        ("hidden_sizes", [96, 192, 384, 768], [6, 12, 24, 48]),
        ("depths", (3, 4, 6, 3), [1, 1, 1, 1]),
        ("conv_stride", (5, 2, 2), (5, 2, 2)),
        ("patch_size", 16, 16),
        ("eos_token_id", 50256, 50256),
        ("rms_norm_eps", 1e-6, 1e-6),
        ("use_cache", True, True),
        ("hidden_size", None, None),
    ],
)
def test_a_field_becomes_what_the_first_rule_that_names_it_says(field, value, expected):
    assert rules.shrunk(field, field, value, UNIFORM) == expected


def test_a_rung_changes_sizes_and_keeps_paths():
    wide = Rung("wide", sizes={"width": 128}, keep=r"text_config\..*")
    assert rules.shrunk("hidden_size", "hidden_size", 4096, wide) == 128
    assert rules.shrunk("hidden_size", "text_config.hidden_size", 4096, wide) == 4096


def test_every_size_that_a_rule_names_exists():
    said = rules.rules()
    named = {v for r in said.rule for v in (r.value, r.at_most, r.each) if isinstance(v, str)}
    named |= {name for rung in said.rung for name in rung.sizes}
    assert named <= set(said.sizes)


@pytest.mark.parametrize(
    ("columns", "count", "expected"),
    [
        ([], 12, [10, 11]),
        ([["sliding"] * 5 + ["full"]], 6, [0, 5]),
        ([["full", "sliding", "sliding", "full"]], 4, [1, 3]),  # the last is kept
        ([["a", "a", "b", "b"], [0, 1, 0, 1]], 4, [0, 1, 2, 3]),  # each combination
        ([["a"]], 1, [0]),
    ],
)
def test_one_layer_of_each_kind_is_kept(columns, count, expected):
    assert layers.kept_layers(columns, count) == expected


def test_lists_about_layers_follow_the_layers():
    values = {
        "layer_types": ["sliding"] * 7 + ["full"],
        "global_attn_indexes": [7],
        "out_indices": [2, 4, 6, 8],
        "mlp_layer_types": ["dense"] + ["sparse"] * 7,
    }
    thinned = layers.thinned(values, 8)
    assert thinned[""] == 4
    assert thinned["layer_types"][-1] == "full"
    assert set(thinned["mlp_layer_types"]) == {"dense", "sparse"}
    assert thinned["out_indices"] == [1, 2, 3, 4]
    assert thinned["global_attn_indexes"] == [3]


@pytest.mark.parametrize(
    ("sections", "half", "expected"),
    [([16, 24, 24], 8, [2, 3, 3]), ([22, 22, 20], 8, [3, 3, 2]), ([24, 20, 20], 8, [3, 3, 2])],
)
def test_rotary_sections_keep_their_proportion_and_add_up(sections, half, expected):
    assert relations.rescaled_sections(sections, half) == expected
