"""The client needs one package for TLS, and the library itself none."""

import subprocess
import sys


def run(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


def test_a_missing_package_is_named_with_the_way_to_get_it() -> None:
    result = run(
        "import sys; sys.modules['httpx2'] = None\n"
        "import penstock\n"
        "penstock.open('http://127.0.0.1:1/default/q').close()\n"
        "try: penstock.open('https://127.0.0.1:1/default/q')\n"
        "except penstock.PenstockError as error: print(error)\n"
    )
    assert "pip install '.[client]'" in result.stdout
    assert "httpx2" in result.stdout


def test_the_client_needs_nothing_of_a_broker_or_server() -> None:
    result = run(
        "import sys, penstock, penstock.client, penstock.worker\n"
        "penstock.open('http://127.0.0.1:1/default/q').close()\n"
        "assert not {'prometheus_client', 'httptools', 'uvloop', 'msgspec'} & set(sys.modules)\n"
        "assert not any(name.startswith('penstock.broker') for name in sys.modules)\n"
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_library_itself_does_not_load_it() -> None:
    result = run(
        "import sys, penstock, penstock.aio\n"
        "assert not {'httpx2', 'penstock.client'} & set(sys.modules)\n"
    )
    assert (result.returncode, result.stderr) == (0, "")
