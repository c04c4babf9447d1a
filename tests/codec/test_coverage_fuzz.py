"""The two bodies agree on whatever a fuzzer finds that is led by coverage."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.codec.bodies import needs_compiled
from tests.codec.damage import damaged, random_run

ROOT = Path(__file__).resolve().parents[2]
RUNS = 300_000

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600), needs_compiled]


def test_both_bodies_agree_on_every_input_that_coverage_leads_to(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed: pip install atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    random = Random("corpus")
    for number in range(200):
        run = random_run(random, 3)
        (corpus / str(number)).write_bytes(run if number % 2 else damaged(random, run))
    done = subprocess.run(
        [sys.executable, "-m", "tests.codec.coverage_fuzz", f"-runs={RUNS}", "-seed=1", corpus],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {RUNS} runs" in done.stderr
