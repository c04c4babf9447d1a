"""The figures of docs/measured.md and its picture are those of the recorded benchmarks."""

from xml.etree import ElementTree

from scripts.write_measured import PAGE, PANELS, PICTURE, bars_of, page, picture


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run: python scripts/write_measured.py"


def test_the_picture_is_up_to_date() -> None:
    assert picture() == PICTURE.read_text(), "run: python scripts/write_measured.py"
    assert ElementTree.fromstring(picture()).tag.endswith("svg")


def test_each_panel_compares_penstock_with_a_peer() -> None:
    for panel in PANELS:
        assert {bar.is_ours for bar in bars_of(panel)} == {True, False}, panel.title
