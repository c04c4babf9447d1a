"""The PostgreSQL benchmark runs and says what it should; how fast anything is, no test decides."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "postgres.py"
ROWS = {
    "singles": {"penstock, files", "penstock", "penstock, standby"},
    "delivery": {"to the owner", "from the owner"},
}
PEERS = {"procrastinate": "procrastinate", "pgqueuer": "pgqueuer", "asyncpg": "SKIP LOCKED table"}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the server's user can reach, unlike those of pytest."""
    with TemporaryDirectory() as made:
        Path(made).chmod(0o711)
        yield Path(made)


def test_a_quick_run_writes_table_json_and_plot(place: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--rounds", "1", "--only", *ROWS]
    run = subprocess.run(
        [*command, "--dir", str(place), "--out", str(place / "out")],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    assert [path.name for path in place.iterdir()] == ["out"]  # it cleans up
    assert "penstock, standby" in run.stdout
    found = json.loads((place / "out" / "postgres.json").read_text())
    installed = {name for package, name in PEERS.items() if find_spec(package) is not None}
    for row in found["rows"]:
        ran = {one["name"] for one in row["contenders"] if one["rounds"]}
        assert ran == ROWS[row["name"]] | (installed if row["name"] == "singles" else set())
        for one in row["contenders"]:
            for figures in one["rounds"]:
                least = 0 if row["name"] == "bloat" else 1e-9  # a short run leaves no dead rows
                assert all(value >= least for name, value in figures.items() if name != "others")
    assert "penstock: publish" in (place / "out" / "postgres.svg").read_text()
