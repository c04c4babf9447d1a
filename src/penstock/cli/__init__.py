"""The `penstock` command. It needs the extra `cli`."""

import sys
from collections.abc import Sequence

_NEEDED = frozenset(["rich", "typer"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and exit with its code."""
    try:
        from penstock.cli.app import run
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _NEEDED:
            raise
        sys.stderr.write(
            f"penstock: the command line needs the package {package!r}, which is not installed; "
            f"install Penstock with the extra cli (pip install '.[cli]' in its checkout)\n"
        )
        sys.exit(2)
    sys.exit(run(arguments))
