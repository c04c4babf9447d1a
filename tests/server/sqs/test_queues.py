"""Queues of SQS: creating, finding, attributes, tags."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.server.running import RunningServer, queue_path
from tests.server.sqs.clients import refused, sqs_client

MISSING = "AWS.SimpleQueueService.NonExistentQueue"


def attributes(sqs: Any, url: str, *names: str) -> dict[str, str]:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names or ["All"])
    return dict(found.get("Attributes", {}))


def test_a_queue_is_created_found_listed_and_deleted(
    server: RunningServer, sqs: Any, queue: str
) -> None:
    url = sqs.create_queue(QueueName=queue)["QueueUrl"]
    assert url == f"{server.url}/default/{queue}"
    assert sqs.get_queue_url(QueueName=queue)["QueueUrl"] == url
    assert sqs.list_queues(QueueNamePrefix=queue)["QueueUrls"] == [url]
    sqs.delete_queue(QueueUrl=url)
    with refused(MISSING):
        sqs.get_queue_url(QueueName=queue)
    with refused(MISSING):
        sqs.delete_queue(QueueUrl=url)
    assert sqs.list_queues(QueueNamePrefix=queue).get("QueueUrls", []) == []


def test_a_new_queue_has_the_defaults_of_sqs(sqs: Any, queue: str, url: str) -> None:
    found = attributes(sqs, url)
    assert int(found.pop("CreatedTimestamp")) <= int(found.pop("LastModifiedTimestamp"))
    assert found == {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "QueueArn": f"arn:aws:sqs:eu-west-1:default:{queue}",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "false",
        "VisibilityTimeout": "30",
    }
    assert attributes(sqs, url, "VisibilityTimeout") == {"VisibilityTimeout": "30"}
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url)
    with refused("InvalidAttributeName"):
        attributes(sqs, url, "Unknown")


def test_creating_again_needs_the_same_attributes(sqs: Any, queue: str) -> None:
    given = {"VisibilityTimeout": "1800", "DelaySeconds": "3"}
    url = sqs.create_queue(QueueName=queue, Attributes=given)["QueueUrl"]
    assert sqs.create_queue(QueueName=queue, Attributes=given)["QueueUrl"] == url
    assert sqs.create_queue(QueueName=queue)["QueueUrl"] == url
    for other in (
        {"VisibilityTimeout": "30"},
        {"DelaySeconds": "0"},
        {"MaximumMessageSize": "2048"},
    ):
        with refused("QueueAlreadyExists"):
            sqs.create_queue(QueueName=queue, Attributes=other)


def test_many_clients_create_the_same_queue(sqs: Any, queue: str) -> None:
    given = {"VisibilityTimeout": "77", "DelaySeconds": "3"}
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(sqs.create_queue, QueueName=queue, Attributes=given) for _ in range(8)]
        assert len({one.result(30)["QueueUrl"] for one in made}) == 1


def test_attributes_are_changed(sqs: Any, url: str) -> None:
    given = {
        "VisibilityTimeout": "7",
        "DelaySeconds": "900",
        "MaximumMessageSize": "1024",
        "MessageRetentionPeriod": "1209600",
        "ReceiveMessageWaitTimeSeconds": "20",
    }
    sqs.set_queue_attributes(QueueUrl=url, Attributes=given)
    assert attributes(sqs, url, *given) == given


def test_attributes_outlive_a_restart_and_a_deleted_queue_leaves_none(tmp_path: Path) -> None:
    given = {"DelaySeconds": "5", "ReceiveMessageWaitTimeSeconds": "4"}
    with RunningServer(tmp_path / "data") as server:
        sqs = sqs_client(server.url)
        url = sqs.create_queue(QueueName="orders", Attributes=given, tags={"team": "a"})["QueueUrl"]
        sqs.close()
    with RunningServer(tmp_path / "data") as server:
        sqs = sqs_client(server.url)
        url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
        assert attributes(sqs, url, *given) == given
        assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "a"}
        with server.client() as http:
            assert http.delete(queue_path("orders")).is_success
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        assert attributes(sqs, url, *given) == {
            "DelaySeconds": "0",
            "ReceiveMessageWaitTimeSeconds": "0",
        }
        assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)
        sqs.close()


def test_a_queue_of_another_interface_has_its_own_settings(
    server: RunningServer, sqs: Any, queue: str
) -> None:
    with server.client() as http:
        assert http.put(queue_path(queue), json={"lease_s": 45, "default_ttl_s": 3600}).is_success
    url = sqs.get_queue_url(QueueName=queue)["QueueUrl"]
    found = attributes(sqs, url)
    assert (found["VisibilityTimeout"], found["MessageRetentionPeriod"]) == ("45", "3600")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "50"})
    with server.client() as http:
        assert http.get(queue_path(queue)).json()["settings"]["lease_s"] == 50


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"VisibilityTimeout": "43201"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "-1"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "1.5"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": ""}, "InvalidAttributeValue"),
        ({"DelaySeconds": "901"}, "InvalidAttributeValue"),
        ({"MaximumMessageSize": "1023"}, "InvalidAttributeValue"),
        ({"MaximumMessageSize": "1048577"}, "InvalidAttributeValue"),
        ({"MessageRetentionPeriod": "59"}, "InvalidAttributeValue"),
        ({"MessageRetentionPeriod": "1209601"}, "InvalidAttributeValue"),
        ({"ReceiveMessageWaitTimeSeconds": "21"}, "InvalidAttributeValue"),
        ({"Unknown": "1"}, "InvalidAttributeName"),
        ({"QueueArn": "x"}, "InvalidAttributeName"),
        ({"ContentBasedDeduplication": "true"}, "InvalidAttributeName"),
        ({"FifoQueue": "true"}, "InvalidAttributeValue"),
        ({"Policy": "{}"}, "AWS.SimpleQueueService.UnsupportedOperation"),
        ({"KmsMasterKeyId": "x"}, "AWS.SimpleQueueService.UnsupportedOperation"),
        ({"SqsManagedSseEnabled": "true"}, "AWS.SimpleQueueService.UnsupportedOperation"),
        ({"RedrivePolicy": "{"}, "InvalidParameterValue"),
        ({"RedriveAllowPolicy": "[]"}, "InvalidParameterValue"),
    ],
    ids=str,
)
def test_attributes_that_are_refused(
    sqs: Any, queue: str, url: str, given: dict[str, str], code: str
) -> None:
    with refused(code):
        sqs.set_queue_attributes(QueueUrl=url, Attributes=given)
    with refused(code):
        sqs.create_queue(QueueName="never-made", Attributes=given)
    with refused(MISSING):
        sqs.get_queue_url(QueueName="never-made")


def test_names(sqs: Any) -> None:
    for name in ("a", "My_Queue-2", "UPPER", "_x", "9", "a" * 64, "a" * 59 + ".fifo"):
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        url = sqs.create_queue(QueueName=name, Attributes=fifo)["QueueUrl"]
        assert url.endswith(f"/default/{name}")
        assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
        sqs.delete_queue(QueueUrl=url)
    for name in ("", "a.b", "a b", "a" * 81, "ü", "a/b", ".fifo", "-x", "a" * 65, "__dlq__x"):
        with refused("InvalidParameterValue"):
            sqs.create_queue(QueueName=name)
    for name in ("a" * 65, "a" * 60 + ".fifo", "a b"):
        with pytest.raises(ClientError, match="1 to 64 in length"):
            sqs.create_queue(QueueName=name)
    with refused("InvalidParameterValue"):
        sqs.create_queue(QueueName="a.fifo")
    with refused("InvalidAttributeValue"):
        sqs.create_queue(QueueName="a", Attributes={"FifoQueue": "true"})


def test_names_that_differ_in_case_are_different_queues(sqs: Any) -> None:
    first = sqs.create_queue(QueueName="case-A")["QueueUrl"]
    second = sqs.create_queue(QueueName="case-a")["QueueUrl"]
    sqs.send_message(QueueUrl=first, MessageBody="x")
    assert "Messages" not in sqs.receive_message(QueueUrl=second)


def test_lists_have_pages(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        sqs = sqs_client(server.url)
        assert "QueueUrls" not in sqs.list_queues() or sqs.list_queues()["QueueUrls"] == []
        for number in range(7):
            sqs.create_queue(QueueName=f"q{number}")
        sqs.create_queue(QueueName="other")
        pages = sqs.get_paginator("list_queues").paginate(
            QueueNamePrefix="q", PaginationConfig={"PageSize": 3}
        )
        found = [[url.rpartition("/")[2] for url in page["QueueUrls"]] for page in pages]
        assert found == [["q0", "q1", "q2"], ["q3", "q4", "q5"], ["q6"]]
        for wrong in ({"MaxResults": 0}, {"MaxResults": 1001}, {"NextToken": "%"}):
            with refused("InvalidParameterValue"):
                sqs.list_queues(**wrong)
        sqs.close()


def test_the_account_is_the_namespace(server: RunningServer, sqs: Any, queue: str) -> None:
    with server.client() as http:
        assert http.put(queue_path(queue, namespace="shop"), json={}).is_success
    found = sqs.get_queue_url(QueueName=queue, QueueOwnerAWSAccountId="shop")
    assert found["QueueUrl"] == f"{server.url}/shop/{queue}"
    arn = attributes(sqs, found["QueueUrl"], "QueueArn")["QueueArn"]
    assert arn == f"arn:aws:sqs:eu-west-1:shop:{queue}"
    # Only the last two parts of a URL count: one made by AWS works as well.
    sqs.send_message(QueueUrl=f"https://sqs.amazonaws.com/shop/{queue}", MessageBody="x")
    assert sqs.receive_message(QueueUrl=found["QueueUrl"])["Messages"]
    with refused("InvalidAddress"):
        sqs.send_message(QueueUrl=queue, MessageBody="x")


def test_clients_have_the_namespace_of_the_setting(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", sqs_namespace="jobs") as server:
        sqs = sqs_client(server.url)
        url = sqs.create_queue(QueueName="mail")["QueueUrl"]
        assert url == f"{server.url}/jobs/mail"
        assert sqs.list_queues()["QueueUrls"] == [url]
        sqs.close()


def test_tags(sqs: Any, queue: str) -> None:
    url = sqs.create_queue(QueueName=queue, tags={"team": "a"})["QueueUrl"]
    sqs.tag_queue(QueueUrl=url, Tags={"team": "b", "stage": "dev"})
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "b", "stage": "dev"}
    sqs.untag_queue(QueueUrl=url, TagKeys=["team", "unknown"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"stage": "dev"}
    with refused("InvalidParameterValue"):
        sqs.tag_queue(QueueUrl=url, Tags={f"t{n}": "x" for n in range(50)})
    with refused("InvalidParameterValue"):
        sqs.tag_queue(QueueUrl=url, Tags={"x" * 129: "x"})
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"stage": "dev"}


def test_permissions_are_answered_as_unsupported(sqs: Any, url: str) -> None:
    with refused("AWS.SimpleQueueService.UnsupportedOperation"):
        sqs.add_permission(QueueUrl=url, Label="x", AWSAccountIds=["1"], Actions=["*"])
    with refused("AWS.SimpleQueueService.UnsupportedOperation"):
        sqs.remove_permission(QueueUrl=url, Label="x")


def test_metrics_count_calls_and_errors(server: RunningServer, sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="x")
    with refused("InvalidMessageContents"):
        sqs.send_message(QueueUrl=url, MessageBody="\x00")
    with server.client() as http:
        lines = http.get("/metrics").text.splitlines()
    found = {line.partition(" ")[0] for line in lines}
    assert 'penstock_sqs_calls_total{action="SendMessage"}' in found
    assert 'penstock_sqs_errors_total{code="InvalidMessageContents"}' in found


def test_policies_are_json_with_what_sqs_needs(sqs: Any, url: str) -> None:
    arn = attributes(sqs, url, "QueueArn")["QueueArn"]
    wrong: list[dict[str, Any]] = [
        {},
        {"maxReceiveCount": 3},
        {"deadLetterTargetArn": arn, "maxReceiveCount": 0},
        {"deadLetterTargetArn": arn, "maxReceiveCount": 1001},
        {"deadLetterTargetArn": arn, "maxReceiveCount": 3},  # itself
        {"deadLetterTargetArn": f"{arn}-none", "maxReceiveCount": 3},
        {"deadLetterTargetArn": "nonsense", "maxReceiveCount": 3},
        {"deadLetterTargetArn": arn.replace("default", "other"), "maxReceiveCount": 3},
    ]
    for policy in wrong:
        with refused("InvalidParameterValue"):
            sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})
    assert "RedrivePolicy" not in attributes(sqs, url)
