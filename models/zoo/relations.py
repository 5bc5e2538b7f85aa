"""What must fit together in a config, restored after its sizes have changed."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from models.zoo import layers
from models.zoo.rules import is_number

Changes = dict[str, Any]
Lookup = Callable[[str], Any]


@functools.cache
def _source(file: Path) -> str:
    return file.read_text()


def hard_coded_sections(cls: type) -> list[int] | None:
    """The sections of a rotary embedding that the code of a model takes where its config names none."""
    configuration = inspect.getsourcefile(cls) or ""
    modelling = Path(configuration.replace("configuration_", "modeling_"))
    if modelling == Path(configuration) or not modelling.exists():
        return None
    found = re.search(r"mrope_section[\"'], *[\[(](\d+), (\d+), (\d+)", _source(modelling))
    return [int(n) for n in found.groups()] if found else None


def rescaled_sections(sections: list[int], half: int) -> list[int]:
    """Sections in about the same proportion that add up to `half`, none of them empty."""
    total = sum(sections)
    new = [max(1, n * half // total) for n in sections]
    by_loss = sorted(range(len(new)), key=lambda i: new[i] - sections[i] * half / total)
    for turn in range(half - sum(new)):
        new[by_loss[turn % len(new)]] += 1
    return new


def rotary(config: Any, values: Mapping[str, Any], changed: Changes, now: Lookup) -> None:
    """Sections of a rotary embedding add up to half of what is rotated, factors are as many, and context is short."""
    rope = values.get("rope_parameters")
    if not isinstance(rope, dict):
        return
    head = now("qk_rope_head_dim") or changed.get("head_dim")
    if not is_number(head):
        width, heads = now("hidden_size"), now("num_attention_heads")
        head = width // heads if is_number(width) and is_number(heads) else 16
    rope = copy.deepcopy(rope)
    parts = [part for part in [rope, *rope.values()] if isinstance(part, dict)]
    hard_coded = None if "vision" in type(config).model_type else hard_coded_sections(type(config))
    named = any("mrope_section" in part for part in parts)
    for part in parts:
        if hard_coded and not named and "rope_theta" in part:
            part["mrope_section"] = hard_coded
        half = int(head * part.get("partial_rotary_factor", 1.0)) // 2
        if part.get("mrope_section"):
            part["mrope_section"] = rescaled_sections(part["mrope_section"], half)
        if part.get("original_max_position_embeddings"):
            part["original_max_position_embeddings"] = 64
        for name in ("long_factor", "short_factor"):
            if part.get(name):
                part[name] = part[name][:half]
    if rope != values["rope_parameters"]:
        changed["rope_parameters"] = rope


def stages(config: Any, values: Mapping[str, Any], changed: Changes, now: Lookup) -> None:
    """The stages that a backbone returns, where it has fewer of them than before: the last ones."""
    counter = layers.count_field(values)
    names = list(vars(config).get("stage_names") or [])
    if not counter or len(names) != values[counter] + 1:
        return
    wanted = list(vars(config).get("_out_indices") or [])
    changed.pop("out_features", None)
    if not wanted or wanted == [values[counter]]:
        changed.pop("out_indices", None)  # the last one is the default
        return
    changed[counter] = max(now(counter), min(len(wanted), 4))
    changed["out_indices"] = [max(0, changed[counter] - len(wanted) + 1 + i) for i in range(len(wanted))]


def first_stage(config: Any, values: Mapping[str, Any], changed: Changes, now: Lookup) -> None:
    """The hidden size of a hierarchy is the width of its first stage."""
    widths = now("embed_dim_per_stage")
    if isinstance(widths, list | tuple) and widths:
        changed["hidden_size"] = widths[0]


TIMM = ("resnet50", "resnet18", "resnet34", "resnet101")
TINY_TIMM = "test_resnet"
"""timm has tiny architectures for tests of its own."""


def timm(config: Any, values: Mapping[str, Any], changed: Changes, now: Lookup) -> None:
    """A small network instead of a residual one that a config takes from timm by name."""
    for name in ("backbone", "architecture"):
        if type(config).model_type.startswith("timm_") and values.get(name) in TIMM:
            changed[name] = TINY_TIMM


def pyramid(config: Any, values: Mapping[str, Any], changed: Changes, now: Lookup) -> None:
    """The width of the first stage follows from its heads: it doubles from stage to stage as they do."""
    heads = now("num_heads")
    if isinstance(heads, list | tuple) and heads and is_number(heads[0]) and is_number(changed.get("embed_dim")):
        changed["embed_dim"] = heads[0] * 8


def rotated_heads(config: Any, values: Mapping[str, Any], changed: Changes, now: Lookup) -> None:
    """In latent attention `head_dim` is of what is rotated, where it is so by default."""
    if is_number(values.get("head_dim")) and values["head_dim"] == values.get("qk_rope_head_dim"):
        changed["head_dim"] = now("qk_rope_head_dim")


def state_space(config: Any, values: Mapping[str, Any], changed: Changes, now: Lookup) -> None:
    """Heads of a state-space layer fill its expanded width."""
    for heads, size, expand in (("num_heads", "head_dim", "expand"), ("mamba_n_heads", "mamba_d_head", "mamba_expand")):
        if all(is_number(now(n)) for n in (heads, size, expand, "hidden_size")):
            changed[heads] = now("hidden_size") * now(expand) // now(size)


def indexed_groups(config: Any, values: Mapping[str, Any], changed: Changes, now: Lookup) -> None:
    """An indexer that selects for each group of heads has a head for each of them, where it is so by default."""
    if is_number(values.get("index_n_heads")) and values["index_n_heads"] == values.get("num_key_value_heads"):
        changed["index_n_heads"] = now("num_key_value_heads")


ALL = (rotated_heads, rotary, stages, timm, first_stage, pyramid, state_space, indexed_groups)


def restore(config: Any, values: Mapping[str, Any], changed: Changes) -> None:
    """Adds to `changed`, in place, what the changes entail. `values` are the fields of the default config."""

    def now(name: str) -> Any:
        return changed.get(name, values.get(name))

    for relation in ALL:
        relation(config, values, changed, now)
