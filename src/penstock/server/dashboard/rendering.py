"""Templates: everything that is filled in is escaped, payloads included."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

import penstock
from penstock.server.dashboard import drawing, formatting
from penstock.server.dashboard.visit import Visit

_TYPES = {
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}


@cache
def environment() -> Environment:
    """Return the templates. They are compiled when they are first used."""
    made = Environment(
        loader=PackageLoader("penstock.server.dashboard"),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        count=formatting.count,
        rate=formatting.rate,
        size=formatting.size,
        span=formatting.span,
        span_text=formatting.span_text,
        percent=formatting.percent,
        preview=formatting.preview,
        absolute=formatting.absolute,
        short=formatting.short,
        many=formatting.many,
        moment=_moment,
        sparkline=drawing.sparkline,
        static=static_path,
        version=penstock.__version__,
    )
    made.globals["ui"] = made.get_template("ui.html").module
    return made


@pass_context
def _moment(context: Context, at_ns: int) -> Markup:
    return formatting.moment(at_ns, context["now_ns"])


def render(template: str, visit: Visit, values: Mapping[str, Any]) -> bytes:
    """Return a whole page."""
    made = environment().get_template(template).render(_context(visit, values))
    return made.encode()


def render_blocks(
    template: str, visit: Visit, values: Mapping[str, Any], names: tuple[str, ...]
) -> dict[str, str]:
    """Return some blocks of a page."""
    found = environment().get_template(template)
    context = found.new_context(_context(visit, values))
    return {name: "".join(found.blocks[name](context)) for name in names if name in found.blocks}


def live_blocks(template: str) -> tuple[str, ...]:
    """Return the blocks of a page that are sent again when they change."""
    return tuple(n for n in environment().get_template(template).blocks if n.startswith("live_"))


def _context(visit: Visit, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"visit": visit, "now_ns": visit.now_ns, "prefix": visit.prefix, **values}


# -- static files ----------------------------------------------------------------------------------


@cache
def _static(name: str) -> tuple[bytes, str]:
    """Return a file and its version. KeyError if there is none."""
    folder = files("penstock.server.dashboard") / "static"
    known = {item.name: item for item in folder.iterdir() if item.is_file()}
    known |= {f"vendor/{item.name}": item for item in (folder / "vendor").iterdir()}
    content = known[name].read_bytes()
    return content, hashlib.sha256(content).hexdigest()[:12]


def static_file(name: str) -> tuple[bytes, str]:
    """Return a file and its media type. KeyError if there is none."""
    content, _ = _static(name)
    return content, _TYPES[name.rpartition(".")[2]]


@pass_context
def static_path(context: Context, name: str) -> str:
    """Return the path of a file, with its version: it may be cached forever."""
    _, tag = _static(name)
    return f"{context['prefix']}/dashboard/static/{name}?v={tag}"
