"""The colours can be read: the contrast of WCAG 2.2 (AA), computed from the tokens of the CSS."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

CSS = (Path(str(files("penstock.server.dashboard"))) / "static" / "dashboard.css").read_text()
TOKENS = {
    name: (light, dark)
    for name, light, dark in re.findall(
        r"--([a-z-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", CSS
    )
}
GROUNDS = ("bg", "panel", "sunken")
TEXTS = ("ink", "muted", "accent", "danger", "good", "warn")
# Text on a ground of its own.
PAIRS = (
    ("on-accent", "accent"),
    ("on-danger", "danger"),
    ("danger", "danger-tint"),
    ("good", "good-tint"),
    ("warn", "warn-tint"),
    ("ink", "danger-tint"),
    ("ink", "good-tint"),
    ("ink", "warn-tint"),
    ("muted", "danger-tint"),
)
# Lines, dots and borders that mean something need 3 : 1.
SHAPES = ("edge", "ready", "scheduled", "leased", "parked", "dead", "done")


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_formula_is_that_of_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_and_shapes_have_enough_contrast(theme: int) -> None:
    wanted = [(text, ground, 4.5) for text in TEXTS for ground in GROUNDS]
    wanted += [(text, ground, 4.5) for text, ground in PAIRS]
    wanted += [(shape, ground, 3.0) for shape in SHAPES for ground in GROUNDS]
    found = {
        f"{text} on {ground}": round(contrast(TOKENS[text][theme], TOKENS[ground][theme]), 2)
        for text, ground, least in wanted
        if contrast(TOKENS[text][theme], TOKENS[ground][theme]) < least
    }
    assert found == {}


def test_no_colour_is_outside_of_the_tokens() -> None:
    rules = CSS[CSS.index("}") :]
    assert re.findall(r"#[0-9a-f]{3,8}\b(?!,|\))", rules.replace("#notice", "")) == []
