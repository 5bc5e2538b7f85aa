"""Smaller configs: pure functions from a default config to what a tiny one changes. The sizes are in rules.toml."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

RULES = Path(__file__).with_name("rules.toml")

_IGNORED = re.compile(
    r"_.*|transformers_version|architectures|id2label|label2id|dtype|per_layer_config|stage_names|quantization_config"
)
_TOKEN = re.compile(r".*_token_id|.*_token_index|.*_token_ids|.*_(id|index)|.*_token_idx|\w*im_(start|end|newline)_id")
_NO_TOKEN = re.compile(
    r".*(expert|layer|stage|attn|attention|loss_ignore|ignore|merge|speaker|lang|decode)_?(id|index|ids)"
)
_SPECIAL_FROM = 192
"""Token ids from here on move to the top of the small vocabulary; smaller ones fit already."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fields: str
    value: int | str | None = None
    at_most: int | str | None = None
    each: int | str | None = None
    scale: float | bool | None = None
    keep: bool = False
    where: str | None = None


class Rung(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to shrink, tried where those before it do not run."""

    name: str
    scale: float = 0.0625
    sizes: dict[str, int] = {}
    keep: str | None = None
    fill: bool = False


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sizes: dict[str, int]
    rule: list[Rule]
    rung: list[Rung]


@functools.cache
def rules() -> Rules:
    """What rules.toml says. Raises msgspec.ValidationError, naming the key, where it is malformed."""
    return msgspec.convert(tomllib.loads(RULES.read_text()), Rules)


@functools.cache
def _rule(field: str, path: str) -> Rule | None:
    for rule in rules().rule:
        if re.fullmatch(rule.fields, field) and (rule.where is None or re.search(rule.where, path)):
            return rule
    return None


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def each_number(value: Any, change: Any) -> Any:
    """`value` with `change` applied to each whole number in it, whatever it is nested in; lists stay lists."""
    if isinstance(value, list | tuple):
        return [each_number(v, change) for v in value]
    return change(value) if _number(value) else value


def shrunk(field: str, path: str, value: Any, rung: Rung) -> Any:
    """What the rules make of one value; the value itself where they say nothing."""
    rule = _rule(field, path)
    if rule is None or rule.keep or (rung.keep and re.fullmatch(rung.keep, path)):
        return value
    sizes = {**rules().sizes, **rung.sizes}

    def amount(of: int | str) -> int:
        return sizes[of] if isinstance(of, str) else of

    if rule.scale is not None:
        factor = rung.scale if rule.scale is True else float(rule.scale)
        return each_number(value, lambda n: max(4, int(n * factor)) if n > 4 else n)
    if rule.each is not None:
        least = amount(rule.each)
        return each_number(value, lambda n: min(n, least))
    if not _number(value) or value <= 0:
        if (
            isinstance(value, list | tuple)
            and value
            and all(map(_number, value))
            and rule.value is not None
            and ("num" not in field and len(set(value)) == 1)
        ):
            return [amount(rule.value)] * len(value)
        return value
    if rule.value is not None:
        return amount(rule.value)
    if rule.at_most is not None:
        return min(value, amount(rule.at_most))
    return value


def kept_layers(lists: Iterable[list[Any]], count: int, least: int = 2) -> list[int]:
    """Indices of the layers that are kept: one of each kind in each list of per-layer settings, in order, and the last.

    The last layer often is the full-attention one that caches are measured by. At least `least` layers.
    """
    columns = [list(column) for column in lists]
    kinds = [tuple(repr(column[i]) for column in columns) for i in range(count)]
    if len(set(kinds)) > 4:  # not each combination, but each kind of each list
        kept: set[int] = {count - 1}
        for column in columns:
            shown = [repr(v) for v in column]
            if len(set(shown)) <= 4:
                kept |= {shown.index(kind) for kind in set(shown)}
    else:
        kept = {count - 1} | {kinds.index(kind) for kind in set(kinds) if kind != kinds[count - 1]}
    for index in [*range(count - 2, -1, -1)]:
        if len(kept) >= min(least, count):
            break
        kept.add(index)
    return sorted(kept)


def default_fields(config: Any) -> dict[str, Any]:
    """The fields of a config's class that can be passed to it, with their defaults; None where they are computed."""
    cls = type(config)
    if "__init__" in vars(cls) and not dataclasses.is_dataclass(cls):
        parameters = inspect.signature(cls.__init__).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}
    found = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
        else:
            found[field.name] = None
    return found


def _plain(value: Any) -> Any:
    """As it would be in JSON: tuples are lists."""
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


def _is_config(value: Any) -> bool:
    from transformers import PreTrainedConfig

    return isinstance(value, PreTrainedConfig)


_PLACEHOLDER = re.compile(r"(image|video|audio|speech)_token_(id|index)")
_NEVER = 1 << 40
"""No real vocabulary has ids from here on."""


class _Tokens:
    """New ids for special tokens: what was one id stays one id, distinct ids stay distinct. From the top downwards."""

    def __init__(self, vocab: int) -> None:
        self._top = vocab - 1
        self._new: dict[int, int] = {}

    def __call__(self, old: int) -> int:
        if old < _SPECIAL_FROM:
            return old
        if old not in self._new:
            self._new[old] = self._top - len(self._new)
        return self._new[old]

    def invent(self) -> int:
        """An id for a token that the default config does not have."""
        return self(_NEVER + len(self._new))


LAYER_COUNTS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers", "depth")


def _layer_count(values: Mapping[str, Any]) -> str | None:
    return next((name for name in LAYER_COUNTS if _number(values.get(name))), None)


def _per_layer(values: Mapping[str, Any], count: int) -> dict[str, list[Any]]:
    """The lists that have an element for each layer."""
    if count < 5:
        return {k: list(v) for k, v in values.items() if k.endswith("layer_types") and isinstance(v, list | tuple)}
    return {
        k: list(v)
        for k, v in values.items()
        if isinstance(v, list | tuple) and len(v) == count and not k.startswith("_") and k != "stage_names"
    }


def image_size(patch: Any) -> int:
    """Pixels a side of an image of about four by four patches, 64 where patches are small: pyramids halve it."""
    side = patch if _number(patch) else max(patch) if isinstance(patch, list | tuple) and patch else 16
    return max(4 * side, 64 // side * side)


def shrink(config: Any, rung: Rung, keep: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Keyword arguments of a tiny config of the same class: only what differs from the class's default.

    `keep` are paths of fields that stay at their default.
    """
    tokens = _Tokens({**rules().sizes, **rung.sizes}["vocab"])
    return _shrink(config, "", rung, keep, tokens, given=None)


def _shrink(
    config: Any, prefix: str, rung: Rung, keep: frozenset[str], tokens: _Tokens, *, given: Mapping[str, Any] | None
) -> dict[str, Any]:
    from transformers import PreTrainedConfig

    defaults = default_fields(config)
    values = {k: v for k, v in vars(config).items() if not _IGNORED.fullmatch(k)}
    changed: dict[str, Any] = {}
    if given is not None:
        changed.update(_set_by_parent(config, defaults, given or {}))
    counter = _layer_count(values)
    layers: list[int] | None = None
    if counter and prefix + counter not in keep:
        count = values[counter]
        per_layer = _per_layer(values, count)
        layers = kept_layers(per_layer.values(), count)
        changed[counter] = len(layers)
        for name, column in per_layer.items():
            if name in defaults and len(column) == count:
                changed[name] = _plain([column[i] for i in layers])
        if set(changed.get("layer_types", ())) == {"linear_attention"} and "mamba_n_heads" in values:
            changed["layer_types"][-1] = "full_attention"  # a hybrid by its code, though not by its default config
    for name, value in values.items():
        path = prefix + name
        if path in keep or (name in changed and name == counter):
            continue
        if name in changed and isinstance(changed[name], list) and layers is not None:
            changed[name] = each_number(changed[name], lambda n, f=name, p=path: shrunk(f, p, n, rung))
            continue
        if isinstance(value, PreTrainedConfig):
            inner = _shrink(value, path + ".", rung, keep, tokens, given=_given(config, name))
            if inner:
                changed[name] = inner
            continue
        if isinstance(value, dict):
            if value and all(map(_is_config, value.values())):
                changed[name] = {k: _shrink(v, f"{path}.{k}.", rung, keep, tokens, given={}) for k, v in value.items()}
            continue
        if value is None and _PLACEHOLDER.fullmatch(name):
            changed[name] = tokens.invent()
            continue
        if value is None and name == "pad_token_id":
            changed[name] = 0
            continue
        if name not in defaults and not _TOKEN.fullmatch(name):
            continue
        rule = _rule(name, path)
        listed = rule is not None and rule.scale is not None  # widths of stages do not follow from anything
        if defaults.get(name) is None and not (rung.fill or listed or _TOKEN.fullmatch(name)):
            continue
        new = _special(name, path, value, values, layers, rung, tokens)
        if new is _GENERAL:
            new = shrunk(name, path, value, rung)
        if _plain(new) != _plain(value):
            changed[name] = _plain(new)
    _relate(config, values, changed, rung)
    return changed


_GENERAL = object()


def _special(
    name: str, path: str, value: Any, values: Mapping[str, Any], layers: list[int] | None, rung: Rung, tokens: _Tokens
) -> Any:
    """What is computed rather than looked up; `_GENERAL` where nothing is."""
    if _TOKEN.fullmatch(name) and not _NO_TOKEN.fullmatch(name):
        return each_number(value, tokens)
    if rung.keep and re.fullmatch(rung.keep, path):
        return value
    if name in ("image_size", "img_size", "pretrain_image_size", "crop_size", "input_size", "image_resolution"):
        size = image_size(values.get("patch_size", values.get("patch_stride")))
        return each_number(value, lambda n: min(n, size))
    if (
        name == "window_size"
        and _number(value)
        and values.get("spatial_merge_size")
        and _number(values.get("patch_size"))
    ):
        return values["patch_size"] * values["spatial_merge_size"]  # in pixels
    if name in ("num_key_value_heads", "num_kv_heads") and _number(value):
        heads = values.get("num_attention_heads", values.get("n_head"))
        if value == heads or value == 1:
            return {**rules().sizes, **rung.sizes}["heads"] if value == heads else 1
        return _GENERAL
    if (
        layers is not None
        and isinstance(value, list | tuple)
        and re.fullmatch(
            r".*(layer_ids|_layers|layers_indices|_indexes|_indices|_idxs|attn_idxs|block_indices|layer_idx)", name
        )
        and value
        and all(map(_number, value))
    ):
        kept = [new for new, old in enumerate(layers) if old in value]
        return kept or [len(layers) - 1]
    return _GENERAL


def _given(parent: Any, name: str) -> Mapping[str, Any]:
    """What the class of a config passes to a nested one. An older transformers does not tell."""
    spec = getattr(type(parent), "sub_configs_defaults", {}).get(name)
    return getattr(spec, "init_kwargs", None) or {}


def _set_by_parent(config: Any, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a nested config has that its class would not give it, and its type where another could be meant."""
    found: dict[str, Any] = {k: copy.deepcopy(_plain(v)) for k, v in given.items() if not _is_config(v)}
    try:
        own = type(config)()
    except Exception:  # a class without defaults of its own: everything was set by the parent
        own = None
    for name, default in defaults.items():
        if _IGNORED.fullmatch(name) or not hasattr(config, name):
            continue
        value = getattr(config, name)
        reference = getattr(own, name, default) if own is not None else default
        if not _is_config(value) and _plain(value) != _plain(reference):
            found[name] = copy.deepcopy(_plain(value))
    for name in ("_out_features", "_out_indices"):
        if getattr(config, name, None) != getattr(own, name, None):
            found[name[1:]] = _plain(getattr(config, name))
    if type(config).model_type:
        found["model_type"] = type(config).model_type
    return found


def _relate(config: Any, values: Mapping[str, Any], changed: dict[str, Any], rung: Rung) -> None:
    """Makes what changed consistent, in place."""

    def now(name: str) -> Any:
        return changed.get(name, values.get(name))

    if "rope_parameters" in values:
        _rescale_rope(config, values, changed, now)
    if hasattr(config, "out_features") and "stage_names" in vars(config):
        _relate_stages(config, values, changed, now)
    heads = now("num_heads")
    if isinstance(heads, list | tuple) and heads and _number(heads[0]) and _number(changed.get("embed_dim")):
        changed["embed_dim"] = heads[0] * 8  # the width of the first stage; it doubles from stage to stage as heads do
    if all(_number(now(n)) for n in ("expand", "num_heads", "head_dim", "hidden_size")):
        changed["num_heads"] = int(now("hidden_size") * now("expand")) // now("head_dim")
    if _number(now("mamba_n_heads")) and _number(now("mamba_d_head")) and _number(now("mamba_expand")):
        changed["mamba_n_heads"] = now("hidden_size") * now("mamba_expand") // now("mamba_d_head")


@functools.cache
def hard_coded_sections(cls: type) -> list[int] | None:
    """The rotary sections that the code of a model takes where its config names none."""
    configuration = inspect.getsourcefile(cls) or ""
    modelling = Path(configuration.replace("configuration_", "modeling_"))
    if modelling == Path(configuration) or not modelling.exists():
        return None
    found = re.search(r"mrope_section[\"'], *[\[(](\d+), (\d+), (\d+)", modelling.read_text())
    return [int(n) for n in found.groups()] if found else None


def _rescale_rope(config: Any, values: Mapping[str, Any], changed: dict[str, Any], now: Any) -> None:
    """Sections of a rotary embedding add up to half of what is rotated."""
    rope = values["rope_parameters"]
    if not isinstance(rope, dict):
        return
    head = now("head_dim") if _number(changed.get("head_dim")) else None
    if head is None:
        width, heads = now("hidden_size"), now("num_attention_heads")
        head = width // heads if _number(width) and _number(heads) else 16
    rope = copy.deepcopy(rope)
    touched = False
    if not any("mrope_section" in part for part in [rope, *rope.values()] if isinstance(part, dict)):
        if sections := hard_coded_sections(type(config)):
            rope["mrope_section"] = sections
    for part in [rope, *[v for v in rope.values() if isinstance(v, dict)]]:
        sections = part.get("mrope_section")
        if sections:
            half = int(head * part.get("partial_rotary_factor", 1.0)) // 2
            total = sum(sections)
            new = [max(1, n * half // total) for n in sections]
            new[0] += half - sum(new)
            part["mrope_section"] = new
            touched = True
        if part.get("original_max_position_embeddings"):
            part["original_max_position_embeddings"] = 64
            touched = True
        for name in ("long_factor", "short_factor"):
            if part.get(name):
                part[name] = part[name][: head // 2]
                touched = True
    if touched:
        changed["rope_parameters"] = rope


def _relate_stages(config: Any, values: Mapping[str, Any], changed: dict[str, Any], now: Any) -> None:
    """The stages that a backbone returns, where it has fewer of them than before."""
    names = list(config.stage_names or [])
    counter = _layer_count(values)
    if not counter or len(names) != values[counter] + 1:
        return
    wanted = list(config.out_indices or [])
    layers = max(now(counter), min(len(wanted), 4))
    changed[counter] = layers
    last = [layers - len(wanted) + 1 + i for i in range(len(wanted))]
    if wanted and wanted != [values[counter]]:
        changed["out_indices"] = [max(0, i) for i in last]
        changed.pop("out_features", None)
    else:
        changed.pop("out_indices", None)
        changed.pop("out_features", None)
