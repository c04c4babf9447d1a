"""The files of other projects: each is named, with version, licence and hash, and is unchanged."""

import hashlib
import re
import tomllib
from importlib.resources import files
from pathlib import Path

from tests.test_repository import ROOT

FOLDER = Path(str(files("penstock.server.dashboard"))) / "static" / "vendor"
LISTED = tomllib.loads((FOLDER / "vendored.toml").read_text())["file"]


def test_every_file_is_listed_and_unchanged() -> None:
    hashes = {one["file"]: one["sha256"] for one in LISTED}
    code = {path.name for path in FOLDER.iterdir() if path.suffix in (".js", ".css")}
    assert code == hashes.keys()
    found = {name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name in code}
    assert found == hashes


def test_every_licence_is_there_and_every_version_is_exact() -> None:
    for one in LISTED:
        text = (FOLDER / one["licence_file"]).read_text()
        assert ("MIT License" in text) == (one["licence"] == "MIT")
        assert ("Zero" in text) == (one["licence"] == "0BSD")
        assert re.fullmatch(r"\d+\.\d+\.\d+", one["version"])


def test_the_wheel_has_the_templates_and_the_files() -> None:
    package_data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]["penstock.server.dashboard"]
    folder = FOLDER.parent.parent
    listed = {path for pattern in package_data for path in folder.glob(pattern)}
    others = {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".py"}
    assert {path for path in others if "__pycache__" not in path.parts} == listed - {
        path for path in listed if path.is_dir()
    }
