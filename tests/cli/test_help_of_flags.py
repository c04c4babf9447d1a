"""The help of commands, as a reader sees it."""

import os
import subprocess
import sys


def test_the_help_shows_no_type_behind_a_flag_and_both_names_of_help() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "penstock", "keys", "create", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
    ).stdout
    assert "--json" in shown
    assert "<bool>" not in shown
    assert "<list" not in shown
    (line,) = (line for line in shown.splitlines() if "--help" in line)
    assert " -h " in line
