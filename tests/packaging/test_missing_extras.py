"""Without the packages of an extra, the import says which extra to install."""

import sys
from subprocess import run

import pytest

MISSING = {
    ("penstock.arrow", "pyarrow"): "arrow",
    ("penstock.spark", "pyspark"): "spark",
    ("penstock.spark", "pyarrow"): "spark",
    ("penstock.spark.jobs", "pyspark"): "spark",
}


@pytest.mark.parametrize(("module", "package"), MISSING)
def test_the_import_names_the_extra(module: str, package: str) -> None:
    """It is an ImportError, for programs that can do without."""
    script = (
        "import importlib.abc, sys\n"
        "class NotInstalled(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {package!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, NotInstalled())\n"
        f"import {module}\n"
    )
    said = run([sys.executable, "-c", script], capture_output=True, text=True).stderr
    package_needed = f"needs the package {package!r}, which is not installed"
    assert f"ModuleNotFoundError: penstock.{MISSING[module, package]} {package_needed}" in said
    assert f"with the extra {MISSING[module, package]} " in said
