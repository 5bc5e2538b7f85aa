"""How a script that imports nothing of this suite makes a user's own model: of the user's files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from models.own import pretrained
from models.own.declarations import Entry

if TYPE_CHECKING:
    import torch

DRAWN = """
for p in model.parameters():
    p.copy_(torch.randn(p.shape) * p.shape[-1] ** -0.5 if p.dim() > 1 else p + torch.randn(p.shape) / 10)
"""
"""Random weights of a config, though other ones than those of the sample."""


def of_factory(entry: Entry, dtype: torch.dtype) -> tuple[str, str]:
    """Statements and an expression for what the factory makes: with the weights of the sample."""
    place, _, name = entry.factory.rpartition(":")
    folders = list(entry.path)
    if place.endswith(".py"):
        folders.insert(0, str(Path(place).parent))
        place = Path(place).stem
    return _statements(f"import {place}", f"{place}.{name}()[0]", entry, folders), f"model.to({dtype})"


def of_transformers(entry: Entry, dtype: torch.dtype) -> tuple[str, str]:
    """The same for a config, a checkpoint or a model of the hub. Raises as `pretrained.class_of` does."""
    where = pretrained.place(entry)
    config = pretrained.config_of(entry, where)
    kind = pretrained.class_of(entry, config, where)
    read = f"AutoConfig.from_pretrained({str(where)!r}, trust_remote_code={entry.trust_remote_code})"
    made = f"{kind.__name__}({read})" if entry.config else f"{kind.__name__}.from_pretrained({str(where)!r})"
    found = f"from {kind.__module__} import {kind.__name__}"
    if kind.__module__.startswith("transformers_modules."):
        own = pretrained.own_class(entry, config)
        found = "from transformers.dynamic_module_utils import get_class_from_dynamic_module\n"
        found += f"{kind.__name__} = get_class_from_dynamic_module({own!r}, {str(where)!r})"
    statements = _statements(f"from transformers import AutoConfig\n{found}", made, entry, list(entry.path))
    return statements + (DRAWN.rstrip() if entry.config else ""), f"model.to({dtype})"


def _statements(imports: str, made: str, entry: Entry, folders: list[str]) -> str:
    first = list(dict.fromkeys(folders))
    return f"""sys.path[:0] = {first!r}
{imports}
torch.manual_seed({entry.seed})
model = {made}.eval().requires_grad_(False)"""
