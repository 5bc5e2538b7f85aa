"""Smaller configs: from a default config to what a tiny one changes of it. The sizes are in rules.toml."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Any

from models.zoo import layers, relations, rules
from models.zoo.rules import Rung, each_number, is_number

_IGNORED = re.compile(
    r"_.*|transformers_version|architectures|id2label|label2id|dtype|per_layer_config|stage_names|quantization_config"
)
_TOKEN = re.compile(r".*_token_id|.*_token_index|.*_token_ids|.*_(id|index)|.*_token_idx|\w*im_(start|end|newline)_id")
_NO_TOKEN = re.compile(r".*(expert|layer|stage|attn|attention|ignore|merge|speaker|lang|decode)_?(id|index|ids)")
_PLACEHOLDER = re.compile(r"(image|video|audio|speech)_token_(id|index)")
_IMAGE_SIZES = ("image_size", "img_size", "pretrain_image_size", "crop_size", "input_size", "image_resolution")

_SPECIAL_FROM = 192
"""Token ids from here on move to the top of the small vocabulary; smaller ones fit already."""

_NEVER = 1 << 40
"""No real vocabulary has ids from here on."""

_GENERAL = object()


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


def image_size(patch: Any) -> int:
    """Pixels a side of an image of about four by four patches; 64 where patches are small, for pyramids to halve."""
    side = patch if is_number(patch) else max(patch) if isinstance(patch, list | tuple) and patch else 16
    return max(4 * side, 64 // side * side)


def shrink(config: Any, rung: Rung, keep: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Keyword arguments of a tiny config of the same class: only what differs from the class's default.

    `keep` are paths of fields that stay at their default.
    """
    return _shrink(config, "", rung, keep, _Tokens(rung.amount("vocab")), given=None)


def _shrink(
    config: Any, prefix: str, rung: Rung, keep: frozenset[str], tokens: _Tokens, *, given: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`given` is what the parent passes to a nested config; None at the top."""
    defaults = default_fields(config)
    values = {k: v for k, v in vars(config).items() if not _IGNORED.fullmatch(k)}
    changed = {} if given is None else _set_by_parent(config, defaults, given)
    thinned = _thinned(values, defaults, prefix, keep, rung)
    changed.update(thinned)
    for name, value in values.items():
        path = prefix + name
        if path in keep or name in thinned:
            continue
        if _is_config(value):
            inner = _shrink(value, path + ".", rung, keep, tokens, given=_given(config, name, value))
            if inner:
                changed[name] = inner
        elif isinstance(value, dict):
            if value and all(map(_is_config, value.values())):
                changed[name] = {k: _shrink(v, f"{path}.{k}.", rung, keep, tokens, given={}) for k, v in value.items()}
        elif value is None:
            new = _instead_of_none(name, path, rung, tokens)
            if new is not None:
                changed[name] = new
        elif name in defaults or name in changed or _TOKEN.fullmatch(name):
            rule = rules.rule(name, path)
            listed = rule is not None and rule.scale is not None  # widths of stages do not follow from anything
            always = (
                listed
                or name in changed
                or name in _IMAGE_SIZES
                or name.endswith("grid_pinpoints")
                or _TOKEN.fullmatch(name)
            )
            if defaults.get(name) is None and not (rung.fill or always):
                continue
            new = _special(name, path, value, values, rung, tokens)
            if new is _GENERAL:
                new = rules.shrunk(name, path, value, rung)
            if _plain(new) != _plain(value):
                changed[name] = _plain(new)
    relations.restore(config, values, changed)
    return changed


def _thinned(
    values: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str, keep: frozenset[str], rung: Rung
) -> dict[str, Any]:
    """What becomes of the number of layers and the lists about layers."""
    counter = layers.count_field(values)
    if counter is None or prefix + counter in keep:
        return {}
    found = layers.thinned(values, values[counter])
    found[counter] = found.pop("")
    if set(found.get("layer_types", ())) == {"linear_attention"} and "mamba_n_heads" in values:
        found["layer_types"][-1] = "full_attention"  # a hybrid by its code, though not by its default config
    return {
        name: rules.each_shrunk(name, prefix + name, value, rung) if isinstance(value, list) else value
        for name, value in found.items()
        if name in defaults and prefix + name not in keep
    }


def _instead_of_none(name: str, path: str, rung: Rung, tokens: _Tokens) -> int | None:
    """What a field that is None gets; None where it stays."""
    if _PLACEHOLDER.fullmatch(name):
        return tokens.invent()
    if name == "pad_token_id":
        return 0
    return rules.instead_of_none(name, path, rung) if rung.nones else None


def _special(name: str, path: str, value: Any, values: Mapping[str, Any], rung: Rung, tokens: _Tokens) -> Any:
    """What is computed rather than looked up; `_GENERAL` where nothing is."""
    if _TOKEN.fullmatch(name) and not _NO_TOKEN.fullmatch(name):
        return each_number(value, tokens)
    if rung.keeps(path):
        return value
    patch = values.get("patch_size", values.get("patch_stride"))
    if name in _IMAGE_SIZES:
        side = image_size(patch)
        return each_number(value, lambda n: min(n, side))
    if name == "backbone_feature_sizes":
        before, after = _image_sizes(values)
        return each_number(value, lambda n: n * after // before)
    if value == 1 and name.endswith("heads"):
        return 1  # what is not divided stays so
    if name.endswith("grid_pinpoints"):
        side = image_size(getattr(values.get("vision_config"), "patch_size", None))
        return [[side, 2 * side]]
    if name == "window_size" and is_number(value) and is_number(patch) and values.get("spatial_merge_size"):
        return patch * values["spatial_merge_size"]  # in pixels
    if name == "window_size" and is_number(value) and ("image_size" in values or "depths" in values):
        return min(value, 2)  # in patches: the last stage of a pyramid has no more
    everyone = values.get("num_attention_heads", values.get("n_head"))
    if name in ("num_key_value_heads", "num_kv_heads") and is_number(value) and value == everyone:
        return rung.amount("heads")
    return _GENERAL


def _image_sizes(values: Mapping[str, Any]) -> tuple[int, int]:
    """Pixels a side of the images of the first nested config that has any: by default, and tiny."""
    for config in filter(_is_config, values.values()):
        side = vars(config).get("image_size")
        if not side:
            found = _image_sizes(vars(config))
            if found != (1, 1):
                return found
            continue
        patch = vars(config).get("patch_size", vars(config).get("patch_stride"))
        return side if is_number(side) else side[0], image_size(patch)
    return 1, 1


def _given(parent: Any, name: str, nested: Any) -> Mapping[str, Any]:
    """What the class of a config passes to a nested one. An older transformers does not tell."""
    spec = getattr(type(parent), "sub_configs_defaults", {}).get(name)
    if getattr(spec, "model_type", "") != type(nested).model_type:
        return {}  # it took another class than the default
    return getattr(spec, "init_kwargs", None) or {}


def _set_by_parent(config: Any, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a nested config has that its class would not give it, and its type where another could be meant."""
    found: dict[str, Any] = {k: copy.deepcopy(_plain(v)) for k, v in given.items() if not _is_config(v)}
    try:
        own = type(config)()
    except Exception:  # a class without defaults of its own: everything was set by the parent
        own = None
    for name, default in defaults.items():
        if _IGNORED.fullmatch(name) or name not in vars(config):
            continue
        value = vars(config)[name]
        reference = vars(own).get(name, default) if own is not None else default
        if not _is_config(value) and _plain(value) != _plain(reference):
            found[name] = copy.deepcopy(_plain(value))
    for name in ("_out_features", "_out_indices"):
        if type(config).model_type == "timm_backbone":
            break  # timm names its stages itself
        if own is not None and vars(config).get(name) != vars(own).get(name):
            found[name[1:]] = _plain(vars(config)[name])
    if type(config).model_type == "timm_wrapper":
        found["num_classes"] = 2  # which it takes from a dictionary only
    if type(config).model_type:
        found["model_type"] = type(config).model_type
    return found
