"""Draw docs/architecture.svg: the layers of the package, and the path of one request.

Layers come from the import contract in pyproject.toml, arrows from the import statements in the
source, so the picture cannot disagree with either. Run it again after changing them:

    python scripts/draw_architecture.py
"""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "penstock"
PICTURE = ROOT / "docs" / "architecture.svg"

PURPOSES = {
    "__main__": "python -m penstock",
    "cli": "the commands",
    "demo": "lively traffic at a broker",
    "torture": "kills and damage on a disk",
    "spark": "Spark source, sink and jobs",
    "arrow": "queues as Arrow tables",
    "importing": "messages of other queues",
    "archive": "manifests and Parquet, in directories and object stores",
    "shared": "one directory, several processes",
    "server": "HTTP, WebSocket, dialects",
    "testing": "tasks in tests: memory, a virtual clock",
    "integrations": "tasks in Django and Flask",
    "tasks": "functions as jobs, with results",
    "tracing": "OpenTelemetry spans",
    "worker": "calls a function for each message",
    "aio": "the embedded queue for asyncio",
    "client": "a broker's queues over HTTP",
    "broker": "many queues: keys, quotas, long polls, webhooks",
    "backup": "save and restore queues in use",
    "units": "durations and sizes with units",
    "postgres": "publish in a transaction",
    "protobuf": "messages of gRPC",
    "placement": "which cluster serves a queue",
    "queue": "leases, retries, priorities, order",
    "ledger": "logs on disk: recovery, commit, compaction",
    "codec": "one entry to bytes and back",
    "operations": "each verb of a queue as a value",
    "model": "messages and other values",
    "checking": "argument checks",
    "names": "valid names",
    "background_thread": "threads",
    "clock": "the time",
    "compiled": "C or Python twin",
    "errors": "all errors",
    "locks": "locks and interrupts",
    "extras": "what to install",
}

# The path of one publish: package, title, what happens there. It goes down to the disk and back.
REQUEST = (
    ("client", "POST …/messages", "a dedup id makes retries safe"),
    ("server", "connection and route", "limits, strict JSON"),
    ("broker", "Broker.publish", "key, rate limit, quota; create on use"),
    ("broker", "Store.publish", "returns a future"),
    ("queue", "publishing", "check, deduplicate, apply bounds"),
    ("ledger", "Log", "append to the buffer of the last segment"),
    ("codec", "Packer", "seq, time, fields, checksum"),
    ("broker", "CommitLoop", "one fsync round for all waiting calls"),
    ("server", "201 Created", "the message is on disk"),
)

STYLE = """
.page{fill:#ffffff}.box{fill:#eef4f7;stroke:#1f6f8b}.low{fill:#f4f1ea;stroke:#8a7440}
.name{fill:#12313d;font-weight:bold}.text{fill:#3b4a50}.head{fill:#12313d;font-weight:bold}
.arrow{stroke:#5b7f8c;fill:none}.tip{fill:#5b7f8c}
@media (prefers-color-scheme: dark){
.page{fill:#10181c}.box{fill:#17303a;stroke:#5fb3ce}.low{fill:#2b2719;stroke:#c9ad66}
.name{fill:#e8f3f7}.text{fill:#b9c8ce}.head{fill:#e8f3f7}.arrow{stroke:#86aebb}.tip{fill:#86aebb}}
"""
ROW, BOX, LEFT, TOP, WIDTH = 40, 30, 190, 70, 1180
FLOW_LEFT, FLOW_WIDTH, FLOW_ROW = 760, 390, 76


@cache
def layers() -> list[list[str]]:
    """Return the layers of the import contract, top first, each with its modules."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one["type"] == "layers"]
    return [[name.strip().strip("()") for name in layer.split("|")] for layer in contract["layers"]]


@cache
def imports() -> frozenset[tuple[str, str]]:
    """Return which top-level module of the package imports which other one."""
    known = {name for layer in layers() for name in layer}
    return frozenset(
        (importer, imported)
        for path in SOURCE.rglob("*.py")
        for importer in [path.relative_to(SOURCE).with_suffix("").parts[0]]
        for imported in _imported_by(path)
        if importer in known and imported in known and importer != imported
    )


def _imported_by(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            package, _, rest = name.partition(".")
            if package == "penstock" and rest:
                yield rest.partition(".")[0]


def arrows() -> list[tuple[int, int]]:
    """Return the imports between layers, by index, without those that a longer path implies."""
    level = {name: index for index, layer in enumerate(layers()) for name in layer}
    below: dict[int, set[int]] = {index: set() for index in range(len(layers()))}
    for importer, imported in imports():
        if level[importer] != level[imported]:
            below[level[importer]].add(level[imported])
    return [
        (upper, lower)
        for upper, lowers in sorted(below.items())
        for lower in sorted(lowers)
        if not any(_reaches(below, other, lower) for other in lowers - {lower})
    ]


def _reaches(below: dict[int, set[int]], start: int, target: int) -> bool:
    return target in below[start] or any(_reaches(below, one, target) for one in below[start])


def picture() -> str:
    """Return the whole SVG."""
    height = TOP + max(len(layers()) * ROW, len(REQUEST) * FLOW_ROW) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"',
        'font-family="Helvetica, Arial, sans-serif" font-size="14">',
        "<title>Layers of Penstock, and the path of one request</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        _text(20, 34, "Layers: an arrow is an import", "head", 18),
        _text(FLOW_LEFT, 34, "The path of one publish", "head", 18),
        _text(
            20, 55, "blue: a package, brown: one module; implied arrows are left out", "text", 13
        ),
        _text(FLOW_LEFT, 55, "left: the package in which it happens", "text", 13),
        *_layer_rows(),
        *(_arc(upper, lower) for upper, lower in arrows()),
        *_request_steps(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _layer_rows() -> Iterator[str]:
    for index, layer in enumerate(layers()):
        y, x = TOP + index * ROW, LEFT
        width = (530 - 10 * (len(layer) - 1)) // len(layer)
        for name in layer:
            style = "box" if (SOURCE / name).is_dir() else "low"
            yield _box(x, y, width, BOX, style)
            yield _text(x + 10, y + 20, name, "name")
            if len(layer) <= 2:  # otherwise there is room for names only
                yield _text(x + max(105, 24 + 10 * len(name)), y + 20, PURPOSES[name], "text", 13)
            x += width + 10


def _arc(upper: int, lower: int) -> str:
    """Draw a curve on the left side, from one layer down to another."""
    start, end = TOP + upper * ROW + BOX * 2 // 3, TOP + lower * ROW + BOX // 3
    bend = LEFT - 14 - min(14 * (lower - upper), LEFT - 30)
    curve = f"M {LEFT} {start} C {bend} {start}, {bend} {end}, {LEFT - 8} {end}"
    tip = f"{LEFT},{end} {LEFT - 9},{end - 4} {LEFT - 9},{end + 4}"
    return f'<path class="arrow" d="{curve}"/><polygon class="tip" points="{tip}"/>'


def _request_steps() -> Iterator[str]:
    for index, (package, title, text) in enumerate(REQUEST):
        y, middle = TOP + index * FLOW_ROW, FLOW_LEFT + FLOW_WIDTH // 2
        yield _box(FLOW_LEFT, y, FLOW_WIDTH, 50, "box")
        yield _text(FLOW_LEFT + 12, y + 21, package, "text", 13)
        yield _text(FLOW_LEFT + 90, y + 21, title, "name")
        yield _text(FLOW_LEFT + 90, y + 40, text, "text", 13)
        if index + 1 < len(REQUEST):
            end = y + FLOW_ROW
            yield f'<path class="arrow" d="M {middle} {y + 50} V {end - 8}"/>'
            tip = f"{middle},{end} {middle - 4},{end - 9} {middle + 4},{end - 9}"
            yield f'<polygon class="tip" points="{tip}"/>'


def _box(x: int, y: int, width: int, height: int, style: str) -> str:
    return f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>'


def _text(x: int, y: int, text: str, style: str, size: int = 14) -> str:
    return f'<text class="{style}" x="{x}" y="{y}" font-size="{size}">{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture())
