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


def is_stored(subject: str) -> bool:
    """Whether asking for its blocks means to read a file, and not to run its model."""
    return _stored(subject) is not None


def _of(subject: str, options: Options) -> dict[str, str]:
    stored = _stored(subject)
    return take_apart(subject, options) or {} if stored is None else stored


def take_apart(subject: str, options: Options) -> dict[str, str] | None:
    """Key of each of its blocks -> path in the model, found by running the model, and kept; none if there is no model.

    In a child: a model that raises, crashes or hangs costs its own blocks only. Then None, and nothing is kept.
    """
    report = forked.run(lambda: [msgspec.json.encode(_find(subject, options))], SECONDS)
    if not report.lines:
        return None
    made = msgspec.json.decode(report.lines[0], type=dict[str, str])
    file = _file(subject)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".", delete=False) as scratch:
        scratch.write(msgspec.json.encode(made))
    os.replace(scratch.name, file)
    return made


def _find(subject: str, options: Options) -> dict[str, str]:
    import torch

    from models.blocks import finding

    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    try:
        made = sources.subject(subject, options)
        module = made.build(torch.float32, 0, False)
        inputs = made.inputs(torch.float32, 0, made.sizes.batch, made.sizes.length)
        return {key: path for path, key, _ in finding.blocks(module, inputs)}
    except NotBuildable:
        return {}


def _stored(subject: str) -> dict[str, str] | None:
    try:
        return msgspec.json.decode(_file(subject).read_bytes(), type=dict[str, str])
    except (FileNotFoundError, msgspec.DecodeError):
        return None


@functools.cache
def _folder() -> Path:
    """Beside the recipes, and by what finds blocks in them."""
    code = Path(__file__).with_name("finding.py").read_bytes()
    return recipes.folder() / f"blocks-{hashlib.sha256(code).hexdigest()[:8]}"


def _file(subject: str) -> Path:
    own = "/" in subject
    return _folder() / f"{subject.replace('/', '@') if own else recipes.stem(*subject.rsplit('.', 1))}.json"
