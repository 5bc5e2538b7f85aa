"""The page on backends names every one that is installed, and the facts that it repeats from the code."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from conformance.backends import registry
from conformance.backends.mutant import NAMES
from conformance.backends.openvino import DEFAULTS

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"
COMMANDS = re.findall(r"^ *\$ conformance (.+)$", PAGE.read_text(), re.MULTILINE)


def test_every_backend_is_named() -> None:
    ours = {entry.name for entry in entry_points(group=registry.GROUP) if entry.dist.name == "spyre-conformance"}
    assert ours <= set(re.findall(r"`(\w+)`", PAGE.read_text()))


def test_defaults_are_named() -> None:
    assert {"testing", *DEFAULTS["config"]} <= set(re.findall(r"`(\w+)`", PAGE.read_text()))


@pytest.mark.parametrize("command", COMMANDS)
def test_backends_in_commands_can_be_made(command: str) -> None:
    found = re.search(r"(?:check|--backend) '?([^' ]+)'?", command)
    if found is None:
        assert command.startswith("query")
        return
    options = dict(item.split("=") for item in re.findall(r"--backend-options (\w+=\w+)", command))
    assert registry.find(found[1], backend_options=options or None).name


def test_a_damage_in_an_example_exists() -> None:
    assert set(re.findall(r"damage=([a-z-]+)", PAGE.read_text())) <= set(NAMES)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE.read_text()):
        assert (PAGE.parent / link).exists(), link
