"""Build the documentation as a site, without network: `make docs`.

Pages are read in a checkout too, so they link to files outside docs: the changelog, examples,
sources. The site generator knows only one directory. So the pages are staged first: a file that a
page links to becomes a page as well, and the links are changed. Then Zensical builds the site. A
broken link or anchor is an error.

    python scripts/build_docs.py build/docs    # the site is in build/docs/site
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUTSIDE = Path("project")  # where the files outside docs are, in the site
CONFIG = "zensical.toml"
_LANGUAGES = {".py": "python", ".toml": "toml", ".ts": "typescript", ".json": "json"}
_LANGUAGES |= {".yml": "yaml", ".yaml": "yaml", ".proto": "protobuf", ".sh": "bash"}
_IMAGES = (".png", ".svg")

# A fenced block or a code span, in which nothing is a link; or the target of a link.
_LINK = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`|(?<=\]\()[^)\s]+(?=\))", re.MULTILINE | re.DOTALL)
_SOURCE = re.compile(r'(?<=\bsrc=")[^"]+(?=")|(?<=\bsrcset=")[^"]+(?=")')
# A list directly below a paragraph. Python-Markdown needs an empty line between them.
_TIGHT_LIST = re.compile(r"^((?! *[-*|#]|    )\S.*)\n(?=(?:[-*]|\d+\.) )", re.MULTILINE)


class BrokenLink(Exception):
    """A page links to a file that does not exist."""


class Staging:
    """The pages of the site, copied to a directory with the links changed.

    Args:
        target: An empty directory.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._waiting: list[Path] = []
        self._seen: set[Path] = set()

    def run(self) -> None:
        """Stage all files of docs, and all that they link to."""
        for path in sorted(DOCS.rglob("*")):
            if path.is_file() and path.name != CONFIG:
                self._place_of(path)
        while self._waiting:
            self._stage(self._waiting.pop())

    def _place_of(self, path: Path) -> Path:
        """Return where a file is in the site. Stage it, if that has not been done."""
        if path not in self._seen:
            self._seen.add(path)
            self._waiting.append(path)
        if path.is_relative_to(DOCS):
            return path.relative_to(DOCS)
        place = OUTSIDE / path.relative_to(ROOT)
        if path.is_dir():
            return place / "index.md"
        if path.name == "README.md":
            return place.with_name("readme.md")
        if path.suffix in (".md", *_IMAGES):
            return place
        return place.with_name(place.name + ".md")

    def _stage(self, path: Path) -> None:
        staged = self._target / self._place_of(path)
        staged.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            staged.write_text(self._listing(path))
        elif path.suffix == ".md":
            staged.write_text(self._page(path))
        elif path.is_relative_to(DOCS) or path.suffix in _IMAGES:
            shutil.copyfile(path, staged)
        else:
            staged.write_text(_as_page(path))

    def _page(self, path: Path) -> str:
        text = _LINK.sub(lambda found: self._link(path, found[0]), path.read_text())
        text = _SOURCE.sub(lambda found: self._link(path, found[0]), text)
        return _TIGHT_LIST.sub(r"\1\n\n", text)

    def _link(self, page: Path, link: str) -> str:
        """Return a link of a page as it must be in the site."""
        if link.startswith(("`", " ", "#")) or re.match(r"[a-z+]+:", link):
            return link  # code, or an address
        name, hash_sign, anchor = link.partition("#")
        linked = Path(os.path.normpath(page.parent / name))
        if not linked.exists():
            raise BrokenLink(f"{page.relative_to(ROOT)} links to {link}, which does not exist")
        start = self._place_of(page).parent
        return os.path.relpath(self._place_of(linked), start) + hash_sign + anchor

    def _listing(self, directory: Path) -> str:
        """Return a page that lists the files of a directory."""
        name = directory.relative_to(ROOT)
        lines = [_NOT_SEARCHED, f"# `{name}`", "", "| file | what it is |", "|---|---|"]
        for path in _files_in(directory):
            place = os.path.relpath(self._place_of(path), self._place_of(directory).parent)
            lines.append(f"| [`{path.name}`]({place}) | {_summary(path)} |")
        return "\n".join(lines) + "\n"


_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"


def _files_in(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.is_file() and (path.suffix in _LANGUAGES or path.suffix == ".md"):
            yield path


def _summary(path: Path) -> str:
    """Return the first line of a module's docstring, or nothing."""
    found = re.match(r'"""(.*?)(?:"""|\n)', path.read_text()) if path.suffix == ".py" else None
    return found[1].replace("|", "\\|") if found else ""


def _as_page(path: Path) -> str:
    """Return a page that shows a file."""
    fence = f"``````{_LANGUAGES.get(path.suffix, 'text')}"
    title = f"# `{path.relative_to(ROOT)}`"
    return f"{_NOT_SEARCHED}{title}\n\n{fence}\n{path.read_text().rstrip()}\n``````\n"


def build(directory: Path) -> Path:
    """Build the site in a directory, which is emptied first. Return the directory of the site.

    Raises:
        BrokenLink: A page links to a file that does not exist.
        subprocess.CalledProcessError: Zensical has found something wrong; its output says what.
    """
    shutil.rmtree(directory, ignore_errors=True)
    pages = directory / "pages"
    pages.mkdir(parents=True)
    Staging(pages).run()
    shutil.copyfile(DOCS / CONFIG, directory / CONFIG)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    subprocess.run(command, cwd=directory, check=True)
    return directory / "site"


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    parser.add_argument("directory", type=Path, help="where to build; everything in it is deleted")
    try:
        site = build(parser.parse_args().directory)
    except BrokenLink as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    print(f"Open {site / 'index.html'} in a browser.")


if __name__ == "__main__":
    main()
