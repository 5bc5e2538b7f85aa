"""Which architectures are taken apart in which tier."""

import pytest

from conformance.cases import Options, Tier
from models import sources
from models.blocks import __main__ as command
from models.blocks import catalogue, suite
from models.blocks.suite import BlockSuite


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    catalogue._folder.cache_clear()
    yield
    catalogue._folder.cache_clear()


def found(tier):
    return {case.subject for case in BlockSuite().cases(Options(tier=tier))}


def test_the_architectures_of_a_tier_are_taken_apart_in_the_one_above(monkeypatch):
    monkeypatch.setattr(catalogue, "homes", lambda subjects, options: {each: [] for each in subjects})
    monkeypatch.setattr(catalogue, "is_stored", lambda subject: True)
    assert not found(Tier.SMOKE)
    assert found(Tier.PR) == set(sources.tiers()["smoke"])
    assert "priority/granite-3.3-8b" in found(Tier.NIGHTLY)


def test_collecting_the_nightly_tier_takes_no_architecture_apart_that_pr_does_not(empty_cache, monkeypatch):
    taken = []
    monkeypatch.setattr(catalogue, "take_apart", lambda subject, options: taken.append(subject))
    assert not found(Tier.NIGHTLY)
    assert set(taken) == set(sources.tiers()["smoke"])
    options = Options(tier=Tier.NIGHTLY)
    assert BlockSuite().excluded(options) == {suite.NOT_TAKEN_APART: len(suite.subjects(options)) - len(taken)}


def test_the_command_makes_blocks_known(empty_cache, capsys):
    assert command.main(["--op", "olmo.causal-lm"]) == 0
    said = capsys.readouterr().out
    assert "of 1 architectures" in said
    assert catalogue.is_stored("olmo.causal-lm")
    homes = catalogue.homes(["olmo.causal-lm"], Options())
    assert {key.partition(".")[0] for key in homes} >= {"attention", "mlp", "layer"}
    assert said.startswith(f"{len(homes)} distinct blocks")


def test_the_command_names_what_it_could_not_take_apart(empty_cache, monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "take_apart", lambda subject, options: None)
    assert command.main(["--op", "olmo.causal-lm"]) == 1
    assert f"olmo.causal-lm  {command.FAILED}" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        command.main(["--op", "no such"])
