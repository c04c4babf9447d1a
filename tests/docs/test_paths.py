"""Every file, section and test that a page names exists, and no page is too long."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, rows_with, unquoted

ROOT = DOCS.parent
ROOTS = (ROOT, ROOT / "src" / "penstock")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FIRST_PARTS = (
    *("src", "tests", "scripts", "benchmarks", "docs"),
    *("codec", "ledger", "queue", "operations", "broker", "server", "client", "cli", "spark"),
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_a_page_names_exists(page: Path) -> None:
    named = re.findall(rf"`((?:{'|'.join(FIRST_PARTS)})/[\w./*-]+)", page.read_text())
    missing = [name for name in named if not any(any(root.glob(name)) for root in ROOTS)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_section_a_page_links_to_exists(page: Path) -> None:
    links = re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", page.read_text())
    missing = []
    for target, anchor in links:
        linked = (page.parent / target).resolve() if target else page
        if anchor not in anchors(linked):
            missing.append(f"{target}#{anchor}")
    assert missing == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_has_more_than_400_lines(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= 400


def test_every_ring_has_a_line_on_the_testing_page() -> None:
    named = {unquoted(row["where"]) for row in rows_with("testing.md", "ring", "where")}
    rings = {f"tests/rings/{path.name}" for path in (ROOT / "tests/rings").glob("test_*.py")}
    assert rings - named == set()


@pytest.mark.parametrize(
    "test", [unquoted(row["test"]) for row in rows_with("scoreboard.md", "symptom", "test")]
)
def test_every_test_on_the_scoreboard_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()
