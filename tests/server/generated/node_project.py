"""A project in TypeScript with the example's packages, for the tests of this process."""

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "typescript"
OF_THE_EXAMPLE = ("package.json", "package-lock.json", "tsconfig.json", "orders.ts")
_PATIENCE_S = 110
# npm asks for nothing and reports nothing that depends on the day.
_ENVIRONMENT = {
    "npm_config_audit": "false",
    "npm_config_fund": "false",
    "npm_config_update_notifier": "false",
    "npm_config_prefer_offline": "true",
}


def run(command: list[str], cwd: Path, **environment: str) -> str:
    """Run a command in a project. Return what it printed; fail with that if it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **_ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE_S,
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}"
    return done.stdout


@cache
def node_project() -> Path:
    """Return a copy of the example, with its packages installed."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-typescript-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for name in OF_THE_EXAMPLE:
        shutil.copy(EXAMPLE / name, directory)
    run(["npm", "ci", "--ignore-scripts"], directory)
    return directory
