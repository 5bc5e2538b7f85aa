"""Which architectures are taken apart in which tier."""

from conformance.cases import Options, Tier
from models import sources
from models.blocks import catalogue
from models.blocks.suite import BlockSuite


def test_the_architectures_of_a_tier_are_taken_apart_in_the_one_above(monkeypatch):
    monkeypatch.setattr(catalogue, "homes", lambda subjects, options: {each: [] for each in subjects})
    found = {tier: {case.subject for case in BlockSuite().cases(Options(tier=tier))} for tier in Tier}
    assert not found[Tier.SMOKE]
    assert found[Tier.PR] == set(sources.tiers()["smoke"])
    assert "priority/granite-3.3-8b" in found[Tier.NIGHTLY]
