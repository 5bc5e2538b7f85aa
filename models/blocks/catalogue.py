"""Which architectures have which block, found once and kept beside the recipes."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from conformance.cases import NotBuildable, Options
from conformance.isolation import forked
from models import sources
from models.zoo import catalogue as recipes

SECONDS = 200.0
"""For the blocks of one architecture: more than the search for its recipe may take."""


class Home(msgspec.Struct, frozen=True):
    """Where a block is: a subject of the model sweep, and the path of the block in its model."""

    subject: str
    path: str


def homes(subjects: Iterable[str], options: Options) -> dict[str, list[Home]]:
    """Key of a block -> where it is, for all blocks of these subjects; keys and homes in the order of the subjects."""
    found: dict[str, list[Home]] = {}
    for subject in subjects:
        for key, path in _of(subject, options).items():
            found.setdefault(key, []).append(Home(subject, path))
    return found


def _of(subject: str, options: Options) -> dict[str, str]:
    file = _file(subject)
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except (FileNotFoundError, msgspec.DecodeError):
        # In a child: cases are being collected, and a model that raises, crashes or hangs costs its own blocks only.
        report = forked.run(lambda: [msgspec.json.encode(_find(subject, options))], SECONDS)
        if not report.lines:
            return {}  # and looked for again next time
        made = msgspec.json.decode(report.lines[0], type=dict[str, str])
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".", delete=False) as scratch:
        scratch.write(msgspec.json.encode(made))
    os.replace(scratch.name, file)
    return made


def _find(subject: str, options: Options) -> dict[str, str]:
    import torch

    from models.blocks import finding

    try:
        made = sources.subject(subject, options)
        module = made.build(torch.float32, 0, False)
        inputs = made.inputs(torch.float32, 0, made.sizes.batch, made.sizes.length)
        return {key: path for path, key, _ in finding.blocks(module, inputs)}
    except NotBuildable:
        return {}


@functools.cache
def _folder() -> Path:
    """Beside the recipes, and by what finds blocks in them."""
    code = Path(__file__).with_name("finding.py").read_bytes()
    return recipes.folder() / f"blocks-{hashlib.sha256(code).hexdigest()[:8]}"


def _file(subject: str) -> Path:
    own = "/" in subject
    return _folder() / f"{subject.replace('/', '@') if own else recipes.stem(*subject.rsplit('.', 1))}.json"
