"""One S3 server for all tests; each test has its own prefix."""

from collections.abc import Iterator

import pytest

from tests.archive.s3_server import S3Server, s3_server


@pytest.fixture(scope="module")
def s3_of_module() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(s3_of_module: S3Server) -> Iterator[S3Server]:
    faults = s3_of_module.faults
    faults.torn_puts, faults.before_put = "", None
    faults.puts.clear()
    yield s3_of_module
    faults.torn_puts, faults.before_put = "", None
