"""The entry point of the `penstock` command. It is outside the package, whose import takes longest.

So an interrupt (Ctrl-C) while the package is imported ends the command without a traceback.
"""

import sys

INTERRUPTED = 130  # what a shell reports of a program that SIGINT ended


def main() -> None:
    """Run one command line and exit with its code."""
    try:
        from penstock.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
