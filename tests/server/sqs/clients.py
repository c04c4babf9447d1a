"""Real clients of SQS for the tests: boto3, at a server of the tests."""

from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

REGION = "eu-west-1"


def sqs_client(url: str, key_id: str = "any", secret: str = "any", **options: Any) -> Any:
    """Return a client of boto3. It tries each call once, so that a test sees every error."""
    config = Config(retries={"total_max_attempts": 1}, read_timeout=30, connect_timeout=30)
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=config,
        **options,
    )


def code_of(error: "pytest.ExceptionInfo[ClientError]") -> str:
    """Return SQS's code of an error, as boto3 gives it."""
    return str(error.value.response["Error"]["Code"])


def refused(code: str) -> Any:
    """Expect an error with a code."""
    return pytest.raises(ClientError, match=f"\\({code}\\)")


def receive(sqs: Any, url: str, **options: Any) -> list[dict[str, Any]]:
    """Return the messages of one receive, which may be none."""
    found = sqs.receive_message(QueueUrl=url, **options).get("Messages", [])
    assert isinstance(found, list)
    return found
