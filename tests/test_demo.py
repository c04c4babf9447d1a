"""The demonstration that `make demo` shows does what it says."""

import re
import subprocess
import sys


def test_the_demonstration_loses_nothing_and_reports_the_damage() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "penstock.demo"], capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    assert ", 0 of the answered ones lost" in shown.stdout
    assert "reported: checksum does not match" in shown.stdout
    around = re.search(r"read around: (\d+) of (\d+) orders", shown.stdout)
    assert around is not None
    assert int(around[1]) == int(around[2]) - 1
