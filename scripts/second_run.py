"""Run failed tests once more, alone: `python scripts/second_run.py` after a failed `pytest`.

Continuous integration runs on shared machines, where a test can fail because the machine was busy.
A test that fails beside the others and then passes three times alone is reported as unstable and
does not fail the job. It must be mended all the same.

No second run for more than three failures, nor for tests that look for lost, repeated, reordered or
damaged messages: a rare failure there is a defect.
"""

import json
import subprocess
import sys
from pathlib import Path

MAX_FAILURES = 3
REPEATS = 3
NEVER_AGAIN = (
    "tests/rings/",
    "tests/conformance/",
    "tests/codec/",
    "tests/ledger/",
    "tests/queue/",
    "tests/broker/",
    "tests/backup/",
)
FAILED = Path(".pytest_cache/v/cache/lastfailed")


def refusal(failed: list[str]) -> str | None:
    """Return why there is no second run of these tests, or None if there is one."""
    if not failed:
        return "No test failed: the failure came before the tests, or stopped them."
    if len(failed) > MAX_FAILURES:
        return f"{len(failed)} tests failed; a second run is for at most {MAX_FAILURES}."
    for name in failed:
        if "::" not in name:
            return f"{name} could not be collected."
        if name.startswith(NEVER_AGAIN):
            return f"{name} guards messages: one failure is enough."
    return None


def name_of(test: str) -> str:
    """Return the name of a test without the group that pytest-xdist appends.

    >>> name_of("tests/spark/test_jobs.py::test_a[x@y]@spark")
    'tests/spark/test_jobs.py::test_a[x@y]'
    """
    return test[: test.rindex("@")] if test.rfind("@") > test.rfind("]") else test


def main() -> int:
    failed = sorted(map(name_of, json.loads(FAILED.read_text()))) if FAILED.exists() else []
    why_not = refusal(failed)
    if why_not:
        print(f"No second run. {why_not}")
        return 1
    for number in range(1, REPEATS + 1):
        print(f"Second run, {number} of {REPEATS}: {', '.join(failed)}", flush=True)
        command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *failed]
        if subprocess.run(command, check=False).returncode:
            return 1
    for name in failed:
        print(f"UNSTABLE: {name} failed once and passed {REPEATS} times alone. Mend it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
