"""Which architectures have which block."""

from __future__ import annotations

import os

import pytest

from conformance.cases import Options
from models.blocks import catalogue


@pytest.mark.parametrize("deed", [os.abort, lambda: 1 / 0], ids=["crashes", "raises"])
def test_a_model_that_fails_costs_its_own_blocks_and_is_looked_at_again(deed, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    catalogue._folder.cache_clear()

    def find(subject, options):
        return deed() if subject == "bad.base" else {"mlp.1": "layers.0.mlp"}

    monkeypatch.setattr(catalogue, "_find", find)
    home = catalogue.Home("good.base", "layers.0.mlp")
    assert catalogue.homes(["bad.base", "good.base"], Options()) == {"mlp.1": [home]}
    assert {path.stem for path in catalogue._folder().iterdir()} == {"good@base"}
    catalogue._folder.cache_clear()
