"""A job submitted with `--py-files`, to machines on which Penstock is not installed."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pyspark
import pytest

from tests.spark.cluster import running_cluster

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.long, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]


def python_without_penstock(place: Path) -> str:
    """Return a Python that has the packages of this one, except those installed for editing."""
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    # A .pth file within that directory, such as the one that names our src, is not followed.
    folder = place / "lib" / version / "site-packages"
    (folder / "packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    found = subprocess.run([python, "-c", "import penstock"], capture_output=True, check=False)
    assert b"No module named 'penstock'" in found.stderr
    return str(python)


def test_a_zip_of_the_package_is_enough_on_a_cluster(tmp_path: Path) -> None:
    python = python_without_penstock(tmp_path / "env")
    archive = str(tmp_path / "penstock.zip")
    # As docs/how-to/spark-clusters.md has it.
    packed = [
        sys.executable,
        "-m",
        "zipfile",
        "-c",
        archive,
        "src/penstock",
        "src/pyspark_penstock",
    ]
    subprocess.run(packed, cwd=ROOT, check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python}
    with running_cluster(tmp_path, python=python) as master:
        done = subprocess.run(
            [
                str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                *("--master", master, "--py-files", archive),
                *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.executor.memory=700m"),
                *(str(Path(__file__).with_name("py_files_work.py")), str(tmp_path)),
            ],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "copied 3000, executors {('python', True)}" in done.stdout
