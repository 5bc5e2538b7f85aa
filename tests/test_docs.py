"""The documentation leads somewhere: every relative link, and every path of this repository that is named, exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = ("conformance", "op_coverage", "spyre_backend")
SOURCES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]

LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
NAMED = re.compile(r"`((?:conformance|op_coverage|spyre_backend|tests|docs)/[\w./-]*)`")
CITED = re.compile(r"\bdocs/[\w-]+\.md\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text()
    linked = [page.parent / target for target in LINK.findall(text)]
    named = [ROOT / path for path in NAMED.findall(text)]
    assert [path for path in [*linked, *named] if not path.exists()] == []


def test_there_are_links():
    assert sum(len(LINK.findall(page.read_text())) for page in PAGES) > 5


def test_pages_that_the_code_cites_exist():
    cited = {(path.name, page) for path in SOURCES for page in CITED.findall(path.read_text())}
    assert cited
    assert [pair for pair in cited if not (ROOT / pair[1]).exists()] == []
