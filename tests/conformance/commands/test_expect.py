"""Which suites' cases an expectations file is held against."""

import pytest

from conformance.cases import Case, Direction, ShapeMode
from conformance.commands import expect

ENTRY = '[[expect]]\ncase = "{}"\noutcome = "budget"\nfingerprint = "budget:*"\nreason = "known"\n'


class Kind:
    def __init__(self, kind, folder):
        self.kind, self.expectations_dir = kind, folder

    def cases(self, options):
        return [Case(self.kind, "a", "float32", ShapeMode.STATIC, Direction.FORWARD)]


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A file of two suites, and a third suite with a folder of its own."""
    folder, other = tmp_path / "expectations", tmp_path / "elsewhere"
    folder.mkdir()
    found = {"models": Kind("model", folder), "decode": Kind("decode", folder), "ops": Kind("op", other)}
    monkeypatch.setattr(expect.suites, "names", lambda: list(found))
    monkeypatch.setattr(expect.suites, "find", found.__getitem__)
    return folder / "spyre.toml"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("entry", "faults"), [("model:a:*", 0), ("decode:a:*", 0), ("op:a:*", 1)])
def test_a_file_that_suites_share_is_about_the_cases_of_all_of_them(shared, entry, faults, named, capsys):
    shared.write_text(ENTRY.format(entry))
    assert expect.lint([shared] if named else [], "models", None, True) == faults
    assert capsys.readouterr().out.endswith("1 files, no fault\n" if not faults else "1 faults in 1 files\n")
