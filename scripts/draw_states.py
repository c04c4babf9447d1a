"""Draw docs/states.svg: the states of a message, and what leads from one to another.

Run it again after changing a state:

    python scripts/draw_states.py
"""

from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "states.svg"

# State: left and top of its box, and a few words.
STATES = {
    "scheduled": (180, 30, "due later"),
    "ready": (460, 145, "can be delivered"),
    "leased": (720, 145, "with one consumer"),
    "done": (980, 145, "settled or removed"),
    "blocked": (180, 260, "after others"),
    "parked": (180, 370, "its key is busy"),
    "dead": (720, 300, "a dead letter"),
    "expired": (460, 370, "not delivered in time"),
}
ENDS = ("done", "dead", "expired")
BOX_WIDTH, BOX_HEIGHT, WIDTH, HEIGHT = 160, 54, 1160, 450
# Where an arrow touches a box, and the direction in which it leaves.
SIDES = {
    "left": (0, 0.5, -1, 0),
    "low-left": (0, 0.8, -1, 0),
    "right": (1, 0.5, 1, 0),
    "low-right": (1, 0.85, 1, 0),
    "top": (0.5, 0, 0, -1),
    "top-left": (0.25, 0, 0, -1),
    "bottom": (0.5, 1, 0, 1),
    "bottom-left": (0.3, 1, 0, 1),
    "bottom-right": (0.75, 1, 0, 1),
}

# From where to where; what happens; and where that is written.
ARROWS = (
    ("scheduled:low-right", "ready:top-left", "time", (400, 112)),
    ("blocked:right", "ready:low-left", "others done", (346, 244)),
    ("parked:right", "ready:low-left", "its turn", (352, 420)),
    ("ready:right", "leased:left", "lease", (650, 164)),
    ("leased:right", "done:left", "ack", (918, 164)),
    ("leased:bottom", "dead:top", "no attempts left", (808, 255)),
    ("leased:top", "scheduled:right", "nack, or the lease ends: try again", (480, 48)),
    ("ready:bottom-left", "expired:top", "time to live is over", (562, 352)),
    ("dead:left", "ready:bottom-right", "redrive", (640, 268)),
)
ENTRANCES = ("scheduled", "blocked", "parked", "ready")

STYLE = """
.page{fill:#ffffff}.box{fill:#eef4f7;stroke:#1f6f8b}.end{fill:#f4f1ea;stroke:#8a7440}
.name{fill:#12313d;font-weight:bold}.text{fill:#3b4a50}.arrow{stroke:#5b7f8c;fill:none}
.tip{fill:#5b7f8c}
@media (prefers-color-scheme: dark){
.page{fill:#10181c}.box{fill:#17303a;stroke:#5fb3ce}.end{fill:#2b2719;stroke:#c9ad66}
.name{fill:#e8f3f7}.text{fill:#b9c8ce}.arrow{stroke:#86aebb}.tip{fill:#86aebb}}
"""


def picture() -> str:
    """Return the whole SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"',
        'font-family="Helvetica, Arial, sans-serif" font-size="14">',
        "<title>The states of a message</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 9 8" refX="9" refY="4" markerWidth="9" '
        'markerHeight="8" orient="auto"><polygon class="tip" points="0,0 9,4 0,8"/>'
        "</marker></defs>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        *_entrance(),
    ]
    for start, end, label, (x, y) in ARROWS:
        parts.append(_arrow(_point(start), _point(end), start, end))
        parts.append(_text(x, y, label, "text", 13, "start"))
    for name, (x, y, words) in STATES.items():
        style = "end" if name in ENDS else "box"
        parts.append(
            f'<rect class="{style}" x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
            'rx="5"/>'
        )
        parts.append(_text(x + BOX_WIDTH // 2, y + 23, name, "name", 15, "middle"))
        parts.append(_text(x + BOX_WIDTH // 2, y + 42, words, "text", 13, "middle"))
    return "\n".join([*parts, "</svg>\n"])


def _entrance() -> list[str]:
    """Draw `enqueue`, from which a message goes to one of four states."""
    start = (92, 172)
    return [
        _text(20, 177, "enqueue", "name", 15, "start"),
        *(_arrow(start, _point(f"{name}:left"), ":right", f"{name}:left") for name in ENTRANCES),
        _text(240, 164, "due now", "text", 13, "start"),
    ]


def _point(place: str) -> tuple[int, int]:
    name, _, side = place.partition(":")
    x, y, _ = STATES[name]
    across, down, _, _ = SIDES[side]
    return round(x + across * BOX_WIDTH), round(y + down * BOX_HEIGHT)


def _arrow(start: tuple[int, int], end: tuple[int, int], leaving: str, entering: str) -> str:
    """Draw a curve that leaves and enters boxes at right angles."""
    (x1, y1), (x2, y2) = start, end
    (right, down), (left, up) = (
        SIDES[place.partition(":")[2]][2:] for place in (leaving, entering)
    )
    bend = max(40, abs(x2 - x1) // 3 if down == 0 else 60)
    curve = (
        f"M {x1} {y1} C {x1 + right * bend} {y1 + down * bend}, "
        f"{x2 + left * bend} {y2 + up * bend}, {x2} {y2}"
    )
    return f'<path class="arrow" marker-end="url(#tip)" d="{curve}"/>'


def _text(x: int, y: int, text: str, style: str, size: int, anchor: str) -> str:
    return (
        f'<text class="{style}" x="{x}" y="{y}" font-size="{size}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture())
