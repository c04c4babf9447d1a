"""The same calls to Penstock and to moto's server of SQS have the same answers.

Random calls must agree entirely. Where the two differ, a script shows it, and docs/sqs.md says why.
"""

import json
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from tests.docs.pages import rows_with
from tests.server.running import RunningServer
from tests.server.sqs.clients import receive, sqs_client

STANDARD = ("q0", "q1")
FIFO = ("f0.fifo", "f1.fifo")
CALLS = 120
Call = tuple[str, tuple[Any, ...]]


class Side:
    """One of the two servers."""

    def __init__(self, url: str, account: str) -> None:
        self.sqs = sqs_client(url, "test", "test")
        self._queues = f"{url}/{account}"
        self._handles: dict[tuple[str, str], str] = {}  # the last one of a message
        self._visible: set[str] = set()  # handles of messages that were made visible

    def url(self, queue: str) -> str:
        return f"{self._queues}/{queue}"

    def do(self, call: Call) -> Any:
        """Return what a call answers, without what must differ: times, ids, hosts."""
        name, arguments = call
        try:
            return getattr(self, name)(*arguments)
        except ClientError as error:
            return "error", error.response["Error"]["Code"]

    def create(self, queue: str, attributes: dict[str, str]) -> None:
        self.sqs.create_queue(QueueName=queue, Attributes=attributes)

    def delete(self, queue: str) -> None:
        self.sqs.delete_queue(QueueUrl=self.url(queue))
        self._forget(queue)

    def find(self, queue: str) -> str:
        return str(self.sqs.get_queue_url(QueueName=queue)["QueueUrl"]).rpartition("/")[2]

    def list_names(self, prefix: str) -> list[str]:
        found = self.sqs.list_queues(QueueNamePrefix=prefix).get("QueueUrls", [])
        return sorted(url.rpartition("/")[2] for url in found)

    def send(self, queue: str, message: dict[str, Any]) -> Any:
        answer = self.sqs.send_message(QueueUrl=self.url(queue), **message)
        sums = {name: value for name, value in answer.items() if name.startswith("MD5")}
        return sums, "SequenceNumber" in answer

    def send_batch(self, queue: str, messages: list[dict[str, Any]]) -> Any:
        entries = [{"Id": str(number), **one} for number, one in enumerate(messages)]
        answer = self.sqs.send_message_batch(QueueUrl=self.url(queue), Entries=entries)
        return [
            (one["Id"], one["MD5OfMessageBody"], one.get("MD5OfMessageAttributes"))
            for one in answer["Successful"]
        ], len(answer.get("Failed", []))

    def receive(self, queue: str, n: int) -> Any:
        found = []
        for one in receive(
            self.sqs,
            self.url(queue),
            MaxNumberOfMessages=n,
            VisibilityTimeout=600,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        ):
            self._handles[queue, one["Body"]] = one["ReceiptHandle"]
            attributes = one["Attributes"]
            names = ("ApproximateReceiveCount", "MessageGroupId", "MessageDeduplicationId")
            found.append(
                (
                    one["Body"],
                    one["MD5OfBody"],
                    one.get("MD5OfMessageAttributes"),
                    json.dumps(one.get("MessageAttributes"), default=repr, sort_keys=True),
                    [attributes.get(name) for name in names],
                )
            )
        return sorted(found)

    def remove(self, queue: str, body: str) -> None:
        handle = self._handles.pop((queue, body), "nonsense")
        self.sqs.delete_message(QueueUrl=self.url(queue), ReceiptHandle=handle)

    def hide(self, queue: str, body: str, seconds: int) -> None:
        handle = self._handles.get((queue, body), "nonsense")
        if not seconds and handle in self._visible:
            return  # see the table of differences
        if not seconds:
            self._visible.add(handle)
        self.sqs.change_message_visibility(
            QueueUrl=self.url(queue), ReceiptHandle=handle, VisibilityTimeout=seconds
        )

    def attributes(self, queue: str) -> dict[str, str]:
        found = self.sqs.get_queue_attributes(QueueUrl=self.url(queue), AttributeNames=["All"])
        # Of SqsManagedSseEnabled, see the table of differences.
        own = {"CreatedTimestamp", "LastModifiedTimestamp", "QueueArn", "SqsManagedSseEnabled"}
        return {name: text for name, text in found["Attributes"].items() if name not in own}

    def change(self, queue: str, attributes: dict[str, str]) -> None:
        self.sqs.set_queue_attributes(QueueUrl=self.url(queue), Attributes=attributes)

    def purge(self, queue: str) -> None:
        self.sqs.purge_queue(QueueUrl=self.url(queue))
        self._forget(queue)

    def tag(self, queue: str, tags: dict[str, str]) -> None:
        self.sqs.tag_queue(QueueUrl=self.url(queue), Tags=tags)

    def untag(self, queue: str, *names: str) -> None:
        self.sqs.untag_queue(QueueUrl=self.url(queue), TagKeys=list(names))

    def tags(self, queue: str) -> dict[str, str]:
        return dict(self.sqs.list_queue_tags(QueueUrl=self.url(queue)).get("Tags", {}))

    def _forget(self, queue: str) -> None:
        self._handles = {key: one for key, one in self._handles.items() if key[0] != queue}


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def sides(server: RunningServer, moto: str) -> Iterator[tuple[Side, Side]]:
    """Both servers, without queues."""
    both = Side(server.url, "default"), Side(moto, "123456789012")
    for side in both:
        for url in side.sqs.list_queues().get("QueueUrls", []):
            side.sqs.delete_queue(QueueUrl=url)
    yield both
    for side in both:
        side.sqs.close()


# -- random calls ----------------------------------------------------------------------------------


class Chance:
    """Random calls, of which some are wrong."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._sent = 0
        self._purged: set[str] = set()

    def calls(self) -> Iterator[Call]:
        for queue in (*STANDARD, *FIFO):
            yield "create", (queue, self._attributes(queue))
        for _ in range(CALLS):
            yield self._call(self._random.choice((*STANDARD, *FIFO)))

    def _call(self, queue: str) -> Call:
        pick = self._random.choice
        body = f"m{self._random.randint(max(self._sent - 8, 0), self._sent + 1)}"
        kinds: dict[str, tuple[int, Callable[[], tuple[Any, ...]]]] = {
            "send": (24, lambda: (queue, self._message(queue))),
            "receive": (20, lambda: (queue, 1 if queue in FIFO else 10)),
            "remove": (14, lambda: (queue, body)),
            "hide": (8, lambda: (queue, body, pick([0, 600]))),
            "attributes": (8, lambda: (queue,)),
            "create": (7, lambda: (queue, self._attributes(queue))),
            "send_batch": (5, lambda: (queue, [self._message(queue) for _ in range(pick([1, 3]))])),
            "change": (4, lambda: (queue, {"VisibilityTimeout": pick(["5", "600"])})),
            "find": (2, lambda: (queue,)),
            "list_names": (2, lambda: (pick(["", "q", "z"]),)),
            "tag": (2, lambda: (queue, {pick("ab"): body})),
            "untag": (1, lambda: (queue, pick("ab"))),
            "tags": (2, lambda: (queue,)),
            "purge": (int(queue not in self._purged), lambda: (queue,)),
            "delete": (1, lambda: (queue,)),
        }
        name = self._random.choices([*kinds], [weight for weight, _ in kinds.values()])[0]
        if name == "purge":  # the second within a minute differs
            self._purged.add(queue)
        return name, kinds[name][1]()

    def _attributes(self, queue: str) -> dict[str, str]:
        given = self._random.choice(
            [
                {},
                {"VisibilityTimeout": "600"},
                {"DelaySeconds": "0"},
                {"MaximumMessageSize": "2048"},
            ]
        )
        return {**given, **({"FifoQueue": "true"} if queue in FIFO else {})}

    def _message(self, queue: str) -> dict[str, Any]:
        pick = self._random.choice
        self._sent += 1
        message: dict[str, Any] = {"MessageBody": f"m{self._sent}"}
        attributes: Any = pick(
            [
                {},
                {"a": {"DataType": "String", "StringValue": "ü"}},
                {
                    "n": {"DataType": "Number.int", "StringValue": "-7"},
                    "b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
                },
            ]
        )
        if attributes:
            message["MessageAttributes"] = attributes
        if queue in FIFO:
            message["MessageGroupId"] = queue[:2]  # SQS says nothing of the order between groups
            message["MessageDeduplicationId"] = f"d{self._sent}"
        elif self._random.random() < 0.2:
            message["DelaySeconds"] = pick([0, 900])
        return message


@pytest.mark.parametrize("seed", range(3))
def test_random_calls_have_the_same_answers(sides: tuple[Side, Side], seed: int) -> None:
    ours, theirs = sides
    for number, call in enumerate(Chance(seed).calls()):
        assert ours.do(call) == theirs.do(call), (number, call)


# -- differences -----------------------------------------------------------------------------------


def _code(call: Callable[..., Any], **options: Any) -> str:
    try:
        call(**options)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "accepted"


def _made(side: Side, name: str, **attributes: str) -> str:
    fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
    made = side.sqs.create_queue(QueueName=name, Attributes={**attributes, **fifo})
    return str(made["QueueUrl"])


def _send(side: Side, url: str, body: str = "x", **options: Any) -> Any:
    return side.sqs.send_message(QueueUrl=url, MessageBody=body, **options)


def _group_in_one_receive(side: Side) -> str:
    url = _made(side, "f.fifo")
    for number in range(2):
        _send(side, url, MessageGroupId="a", MessageDeduplicationId=str(number))
    return str(len(receive(side.sqs, url, MaxNumberOfMessages=10)))


def _a_value_over_its_limit(side: Side) -> str:
    given = {"VisibilityTimeout": "50000"}
    return _code(side.sqs.create_queue, QueueName="q", Attributes=given)


def _an_unknown_attribute(side: Side) -> str:
    return _code(side.sqs.create_queue, QueueName="q", Attributes={"Unknown": "1"})


def _a_control_character(side: Side) -> str:
    return _code(side.sqs.send_message, QueueUrl=_made(side, "q"), MessageBody="\x01")


def _a_dedup_id_in_a_standard_queue(side: Side) -> str:
    url = _made(side, "q")
    message = {"MessageBody": "x", "MessageGroupId": "a", "MessageDeduplicationId": "1"}
    return _code(side.sqs.send_message, QueueUrl=url, **message)


def _a_wrong_entry(side: Side) -> str:
    wrong = {"a": {"DataType": "Other", "StringValue": "x"}}
    entries = [
        {"Id": "a", "MessageBody": "x"},
        {"Id": "b", "MessageBody": "x", "MessageAttributes": wrong},
    ]
    code = _code(side.sqs.send_message_batch, QueueUrl=_made(side, "q"), Entries=entries)
    return "that entry fails" if code == "accepted" else "the batch fails"


def _sequence_number_of_content(side: Side) -> str:
    url = _made(side, "f.fifo", ContentBasedDeduplication="true")
    return str("SequenceNumber" in _send(side, url, MessageGroupId="a")).lower()


def _delete_after_purge(side: Side) -> str:
    url = _made(side, "q")
    _send(side, url)
    (got,) = receive(side.sqs, url)
    handle = {"QueueUrl": url, "ReceiptHandle": got["ReceiptHandle"]}
    side.sqs.purge_queue(QueueUrl=url)
    return _code(side.sqs.delete_message, **handle)


def _a_second_purge(side: Side) -> str:
    url = _made(side, "q")
    side.sqs.purge_queue(QueueUrl=url)
    return _code(side.sqs.purge_queue, QueueUrl=url).rpartition(".")[2]


def _a_duplicate_of_a_deleted_message(side: Side) -> str:
    url = _made(side, "f.fifo")
    for _ in range(2):
        _send(side, url, MessageGroupId="a", MessageDeduplicationId="1")
        found = receive(side.sqs, url)
        for one in found:
            side.sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
    return "delivered" if found else "left out"


def _made_visible_twice(side: Side) -> str:
    url = _made(side, "q")
    _send(side, url)
    (got,) = receive(side.sqs, url)
    hide = {"QueueUrl": url, "ReceiptHandle": got["ReceiptHandle"], "VisibilityTimeout": 0}
    side.sqs.change_message_visibility(**hide)
    return _code(side.sqs.change_message_visibility, **hide).rpartition(".")[2]


def _tags_of_an_existing_queue(side: Side) -> str:
    url = _made(side, "q")
    side.sqs.create_queue(QueueName="q", tags={"a": "1"})
    tags = side.sqs.list_queue_tags(QueueUrl=url).get("Tags", {})
    return "added" if tags else "left out"


def _encryption(side: Side) -> str:
    found = side.sqs.get_queue_attributes(QueueUrl=_made(side, "q"), AttributeNames=["All"])
    return str(found["Attributes"]["SqsManagedSseEnabled"])


def _a_dead_letter_after_its_last_delivery(side: Side) -> str:
    dead = _made(side, "dead")
    found = side.sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": found["Attributes"]["QueueArn"], "maxReceiveCount": 1}
    url = _made(side, "q", RedrivePolicy=json.dumps(policy))
    _send(side, url)
    (got,) = receive(side.sqs, url)
    side.sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0
    )
    return "at once" if receive(side.sqs, dead) else "at the next receive"


DIFFERENCES: dict[str, Callable[[Side], str]] = {
    "messages of one group in one receive, of two": _group_in_one_receive,
    "`VisibilityTimeout` of 50000": _a_value_over_its_limit,
    "an unknown attribute of a new queue": _an_unknown_attribute,
    "a control character in a body": _a_control_character,
    "`MessageDeduplicationId` in a standard queue": _a_dedup_id_in_a_standard_queue,
    "a batch with an entry of a wrong type": _a_wrong_entry,
    "`SequenceNumber` with `ContentBasedDeduplication`": _sequence_number_of_content,
    "a delete after a purge": _delete_after_purge,
    "a second purge within a minute": _a_second_purge,
    "a duplicate of a deleted message, within five minutes": _a_duplicate_of_a_deleted_message,
    "visibility of 0 for a visible message": _made_visible_twice,
    "tags for a queue that exists": _tags_of_an_existing_queue,
    "`SqsManagedSseEnabled`": _encryption,
    "a dead letter is shown": _a_dead_letter_after_its_last_delivery,
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_as_the_page_says(sides: tuple[Side, Side], name: str) -> None:
    rows = {row["case"]: row for row in rows_with("sqs.md", "case", "moto")}
    row = rows[name]
    found = [DIFFERENCES[name](side) for side in sides]
    assert found == [row["Penstock"].strip("`"), row["moto"].strip("`")]
    assert found[0] != found[1]


def test_every_difference_of_the_page_is_shown() -> None:
    assert {row["case"] for row in rows_with("sqs.md", "case", "moto")} == set(DIFFERENCES)
