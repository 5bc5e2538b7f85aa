"""Models and arguments that no table of sizes describes."""

import pytest
import torch

from models.zoo import builders
from models.zoo.recipe import Recipe

NOTHING = Recipe(model_type="bert", task="base", class_name="BertModel", config={}, inputs={})


def drawn(name, recipe, *, batch, length):
    return builders.argument(name)(recipe, batch, length, torch.Generator().manual_seed(0), torch.float32)


def test_each_patch_of_a_batch_is_pooled_once_and_with_its_neighbours():
    pooled = drawn("pooled_patches", NOTHING, batch=2, length=7)
    assert sorted(pooled.flatten().tolist()) == list(range(32))
    assert pooled[:2].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert pooled[4].tolist() == [16, 17, 20, 21]


def test_shared_states_have_the_heads_of_each_kind_of_attention():
    text = {
        "model_type": "gemma4_text",
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    whole = Recipe(
        model_type="gemma4_assistant",
        task="causal-lm",
        class_name="Gemma4AssistantForCausalLM",
        config={"text_config": text},
        inputs={},
    )
    states = drawn("shared_kv_states", whole, batch=3, length=5)
    assert {kind: tuple(keys.shape) for kind, (keys, _) in states.items()} == {
        "sliding_attention": (3, 2, 5, 16),
        "full_attention": (3, 2, 5, 32),
    }


class Cache(dict):
    def put(self, key, value):
        self[key] = value


def test_a_forgetful_model_keeps_nothing(monkeypatch):
    model = torch.nn.Module()
    model.cache, model.other = Cache(), Cache()
    monkeypatch.setattr(builders, "_whole", lambda recipe: model)
    made = builders.model("forgetful:cache")(NOTHING)
    made.cache.put("a", 1)
    made.other.put("a", 1)
    assert (dict(made.cache), dict(made.other)) == ({}, {"a": 1})
    assert isinstance(made.cache, Cache)


@pytest.mark.parametrize("name", ["forgetful", "forgetful:", "forgetting:cache", ""])
def test_another_name_is_an_error(name):
    with pytest.raises(KeyError):
        builders.model(name)
