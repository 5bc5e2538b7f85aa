"""A user's package called `models` is theirs while their code runs, and ours at all other times."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import models
from models.own import namespace


def package(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "__init__.py").write_text(text)
    (folder / "models" / "net.py").write_text(text)
    return (str(folder),)


def test_each_has_its_own(tmp_path):
    one, other = package(tmp_path / "one", "WHOSE = 1"), package(tmp_path / "other", "WHOSE = 2")
    path = list(sys.path)
    for folders, whose in ((one, 1), (other, 2), (one, 1)):
        with namespace.of_user(folders):
            found = importlib.import_module("models.net")
            assert whose == found.WHOSE
            with namespace.of_user(folders):
                assert importlib.import_module("models.net") is found
        assert sys.modules["models"] is models
        assert "models.net" not in sys.modules
    assert sys.path == path


def test_after_an_exception_all_is_as_before(tmp_path):
    folders = package(tmp_path, "raise RuntimeError('theirs')")
    try:
        with namespace.of_user(folders):
            importlib.import_module("models")
    except RuntimeError:
        pass
    assert sys.modules["models"] is models
    assert folders[0] not in sys.path


def test_what_cannot_make_way(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "models").mkdir()
    assert namespace.in_the_way("torch.nn", (str(tmp_path),)).endswith("__init__.py")
    assert namespace.in_the_way("mine.net", (str(tmp_path),)) == ""
    assert namespace.in_the_way("models.net", (str(tmp_path),)) == ""
    assert namespace.in_the_way("torch", (str(tmp_path / "mine"),)) == ""
