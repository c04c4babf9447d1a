"""Requests made from the OpenAPI document: whatever is asked, the server is never at fault."""

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings

from penstock.server.openapi import document
from penstock.server.rest.all_endpoints import ENDPOINTS
from tests.server.running import RunningServer

CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
]
# By chance, for each operation. Beside them are those that schemathesis derives from the limits in
# the document, about 60 an operation, so that there are more than 100 in the default run.
EXAMPLES = min(settings().max_examples // 4, 500)
HEALTH = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

schema = schemathesis.openapi.from_dict(document(ENDPOINTS))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("fuzz") / "data"
    with RunningServer(data, broker={"max_wait_s": 0.01}) as running:
        yield running


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """One connection for all: half of the time would else be spent on making new ones."""
    with requests.Session() as session:
        session.trust_env = False  # proxies are not looked for, for each request anew
        yield session


@schema.parametrize()
@settings(max_examples=EXAMPLES, suppress_health_check=HEALTH)
def test_no_request_is_a_fault_of_the_server(
    case: Any, server: RunningServer, session: requests.Session
) -> None:
    answer = case.call(base_url=server.url, session=session)
    if answer.status_code != 405:  # of a method that schemathesis tried beside those described
        case.validate_response(answer, checks=CHECKS)
