"""The pages build as a site, strictly and without network; every page has its place in it."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scripts import build_docs
from scripts.build_docs import BrokenLink, Staging, build
from tests.docs.pages import DOCS

# Built once: four seconds of CPU time, of which a busy machine makes a minute.
pytestmark = [pytest.mark.xdist_group("docs site"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("docs") / "build")


def test_every_page_is_built(site: Path) -> None:
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()


def test_nothing_is_loaded_from_the_network(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)="(https?:[^"]+)"')
    for page in site.rglob("*.html"):
        assert loaded.findall(page.read_text()) == [], page


def test_a_source_that_a_page_links_to_is_a_page(site: Path) -> None:
    shown = (site / "project/src/penstock/errors.py.html").read_text()
    assert "PenstockError" in shown
    assert "project/src/penstock/errors.py.html" in (site / "errors.html").read_text()


def test_pages_can_be_searched(site: Path) -> None:
    index = (site / "search.json").read_text()
    assert "dead letter" in index and "guarantees.html" in index


@cache
def navigation() -> Any:
    return tomllib.loads((DOCS / "zensical.toml").read_text())["project"]["nav"]


def pages_in(entries: Any) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, dict):
        for value in entries.values():
            yield from pages_in(value)
    else:
        for entry in entries:
            yield from pages_in(entry)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = [page for page in pages_in(navigation()) if not page.startswith("project/")]
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("link", ["[x](nowhere.md)", "![x](nowhere.png)", '<img src="no.svg">'])
def test_a_broken_link_is_an_error(
    link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Title\n\n{link}\n")
    monkeypatch.setattr(build_docs, "ROOT", tmp_path)
    monkeypatch.setattr(build_docs, "DOCS", docs)
    with pytest.raises(BrokenLink, match="index.md links to"):
        Staging(tmp_path / "pages").run()


def test_links_in_code_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs, pages = tmp_path / "docs", tmp_path / "pages"
    docs.mkdir()
    text = "# Title\n\n```text\n[x](no.md)\n```\n\n`[x](no.md)` and [a](#title).\n"
    (docs / "index.md").write_text(text)
    monkeypatch.setattr(build_docs, "ROOT", tmp_path)
    monkeypatch.setattr(build_docs, "DOCS", docs)
    Staging(pages).run()
    assert (pages / "index.md").read_text() == text
