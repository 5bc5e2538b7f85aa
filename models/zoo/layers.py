"""Which layers of a deep model a tiny one keeps: one of each kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from models.zoo.rules import is_number

COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers", "depth")
"""What the number of layers is called; the first of them that a config has."""

_TAPS = re.compile(
    r".*(out_indices|hidden_state_indices|layers_indices|visual_indexes|extract_layers|hook_ids|target_layers|"
    r"target_layer_ids|feature_layers|hidden_indices|summary_layers)"
)
"""Lists of layers whose results are used: as many are needed as there were."""

_SUBSETS = re.compile(
    r".*(layer_ids|_layers|_indexes|_indices|_idxs|attn_idxs|layer_idx|attention_blocks|layers_idx)|\w+_layers_indices"
)
"""Lists of layers that are of another kind than the rest."""

_MOST = 4


def count_field(values: Mapping[str, Any]) -> str | None:
    """The field that holds the number of layers."""
    return next((name for name in COUNTS if is_number(values.get(name))), None)


def kept_layers(columns: Iterable[list[Any]], count: int, least: int = 2) -> list[int]:
    """Indices of the layers that are kept: one of each kind in each column of per-layer settings, and the last.

    The last layer often is the full-attention one that caches are measured by. At least `least` layers.
    """
    table = [[repr(setting) for setting in column] for column in columns]
    kinds = [tuple(column[i] for column in table) for i in range(count)]
    if len(set(kinds)) > _MOST:  # not each combination, but each kind of each column
        kept = {count - 1}
        for column in table:
            if len(set(column)) <= _MOST:
                kept |= {column.index(kind) for kind in set(column)}
    else:
        kept = {count - 1} | {kinds.index(kind) for kind in set(kinds) if kind != kinds[count - 1]}
    for index in reversed(range(count - 1)):
        if len(kept) >= min(least, count):
            break
        kept.add(index)
    return sorted(kept)


def thinned(values: Mapping[str, Any], count: int) -> dict[str, Any]:
    """What the layer count and all lists about layers become: {field: value}; the count's field is "".

    Lists about layers have an element for each layer, or are of indices of layers.
    """
    lists = {k: list(v) for k, v in values.items() if isinstance(v, list | tuple) and v and not k.startswith("_")}
    per_layer = {k: v for k, v in lists.items() if len(v) == count and (count > _MOST or k.endswith("layer_types"))}
    indices = {
        k: v
        for k, v in lists.items()
        if k not in per_layer and all(map(is_number, v)) and len(set(v)) == len(v) and max(v) <= count
    }
    taps = {k: v for k, v in indices.items() if _TAPS.fullmatch(k)}
    subsets = {k: v for k, v in indices.items() if k not in taps and _SUBSETS.fullmatch(k) and min(v) >= 0}
    columns = [*per_layer.values(), *([i in v for i in range(count)] for v in subsets.values())]
    least = max([2, *(len(v) for v in taps.values())])
    layers = kept_layers(columns, count, least)
    changed: dict[str, Any] = {"": len(layers)}
    changed.update({k: [v[i] for i in layers] for k, v in per_layer.items()})
    changed.update({k: [new for new, old in enumerate(layers) if old in v] for k, v in subsets.items()})
    for name, tapped in taps.items():
        first = 1 if max(tapped) == count else 0  # some count the embedding as layer 0
        spread = [(i + 1) * len(layers) // len(tapped) - 1 + first for i in range(len(tapped))]
        order = sorted(range(len(tapped)), key=tapped.__getitem__)  # some go from the last to the first
        changed[name] = [old if old < 0 else spread[order.index(i)] for i, old in enumerate(tapped)]
    return changed
