"""What inputs need to know about a config: sizes and token ids, wherever in the tree of configs they are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PARTS = {
    "image": re.compile(r"vision|visual|image|vit|encoder|detector|backbone|perception"),
    "video": re.compile(r"vision|visual|video|vit|encoder|backbone"),
    "audio": re.compile(r"audio|speech|acoustic|encoder|sound|whisper"),
    "text": re.compile(r"text|llm|language|decoder|thinker|lm|encoder"),
}
"""What the nested config of a modality is called."""

_TOKEN = re.compile(r"(.*_)?(token_ids?|token_index|token_indices|id|index)")


_PLACEHOLDERS = ("{}_token_id", "{}_token_index", "{}_placeholder_token_id", "{}_pad_token_id", "{}_patch_id", "{}_id")


@dataclass(frozen=True)
class Facts:
    """Look-ups in a transformers config."""

    config: Any

    def configs(self, part: str = "") -> Iterator[tuple[str, Any]]:
        """(path, config), breadth first; those of a modality before the rest, where `part` names one."""
        from transformers import PreTrainedConfig

        found: list[tuple[str, Any]] = [("", self.config)]
        for path, config in found:  # grows while it is walked
            for name, value in vars(config).items():
                if isinstance(value, PreTrainedConfig):
                    found.append((f"{path}.{name}", value))
        if part:
            found.sort(key=lambda item: not PARTS[part].search(item[0]))  # stable
        return iter(found)

    def find(self, *names: str, part: str = "", default: Any = None) -> Any:
        """The first of the fields that some config has and that is not None."""
        for _, config in self.configs(part):
            for name in names:
                value = getattr(config, name, None)
                if value is not None:
                    return value
        return default

    def number(self, *names: str, part: str = "", default: int) -> int:
        """As `find`, of the first whole number; of a pair, its first."""
        for _, config in self.configs(part):
            for name in names:
                value = getattr(config, name, None)
                if isinstance(value, list | tuple) and value:
                    value = value[0]
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
        return default

    def token(self, *kinds: str) -> int | None:
        """The id of the placeholder of a modality: `image_token_id`, `image_token_index` and their like."""
        for kind in kinds:
            for form in _PLACEHOLDERS:
                value = self.find(form.format(kind))
                if isinstance(value, int):
                    return value
        named = self.find("vocabulary_map", default={})  # tokens by their text
        for kind in kinds:
            if f"<{kind}>" in named:
                return int(named[f"<{kind}>"])
        return None

    def free_ids(self, vocab: int) -> tuple[int, int]:
        """The widest range [low, high) of token ids below `vocab` that no config gives a meaning to."""
        taken = {0}
        for _, config in self.configs():
            for name, value in vars(config).items():
                if _TOKEN.fullmatch(name):
                    values = value if isinstance(value, list | tuple) else [value]
                    taken |= {v for v in values if isinstance(v, int) and not isinstance(v, bool) and 0 <= v < vocab}
        marks = [*sorted(taken), vocab]
        low, high = max(itertools.pairwise(marks), key=lambda pair: pair[1] - pair[0])
        return (low + 1, high) if high - low > 1 else (0, vocab)

    @property
    def vocab(self) -> int:
        """Tokens of the text part."""
        for _, config in self.configs("text"):
            for name in ("vocab_size", "n_vocab", "num_embeddings", "encoder_vocab_size"):
                value = getattr(config, name, None)
                if isinstance(value, int) and value > 1:
                    return value
        return 256

    def image(self, part: str = "image") -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        channels = self.number("num_channels", "in_channels", "in_chans", "image_channels", part=part, default=3)
        for _, config in self.configs(part):
            for name in ("image_size", "img_size", "input_size", "image_resolution", "crop_size", "spec_size"):
                size = getattr(config, name, None)
                if isinstance(size, dict):
                    size = [size.get("height", size.get("longest_edge", 64)), size.get("width", 64)]
                if isinstance(size, list | tuple) and len(size) == 2 and all(isinstance(n, int) for n in size):
                    return channels, size[0], size[1]
                if isinstance(size, int) and size > 1:
                    return channels, size, size
        side = max(64, 4 * self.patch(part))
        return channels, side, side

    def patch(self, part: str = "image") -> int:
        return self.number("patch_size", "vision_patch_size", "spatial_patch_size", part=part, default=16)
