"""Access: API keys as AWS credentials, and signatures that are wrong, old or of another request."""

import hashlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from penstock.broker.access import INSIDE
from penstock.broker.keys import dump_keys, load_keys, make_key
from penstock.cli import main
from penstock.errors import InvalidInput
from tests.server.running import RunningServer
from tests.server.sqs.clients import REGION, receive, refused, sqs_client

Key = tuple[str, str]
LIST = b'{"QueueNamePrefix": "x"}'


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that needs keys, and believes what proxies on this machine say."""
    data = tmp_path_factory.mktemp("locked") / "data"
    with RunningServer(data, trusted_proxies=("127.0.0.1",)) as server:
        yield server


@pytest.fixture(scope="module")
def key(locked: RunningServer) -> Key:
    return locked.new_key_and_id("publish", "consume", "manage", "read", signs=True)


@pytest.fixture
def sqs(locked: RunningServer, key: Key) -> Iterator[Any]:
    client = sqs_client(locked.url, *key)
    yield client
    client.close()


def test_a_key_signs_all_calls(sqs: Any, queue: str) -> None:
    url = sqs.create_queue(QueueName=queue, Attributes={"DelaySeconds": "0"})["QueueUrl"]
    body = "ü – € " * 1000
    sqs.send_message(QueueUrl=url, MessageBody=body)
    (got,) = receive(sqs, url, WaitTimeSeconds=20)
    assert got["Body"] == body
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])


def test_a_wrong_secret_and_an_unknown_key(locked: RunningServer, key: Key) -> None:
    for key_id, secret, code in [
        (key[0], key[1][:-1] + "x", "SignatureDoesNotMatch"),
        (key[0], "short", "SignatureDoesNotMatch"),
        ("000000000000", key[1], "InvalidClientTokenId"),
        ("AKIAIOSFODNN7EXAMPLE", key[1], "InvalidClientTokenId"),
    ]:
        client = sqs_client(locked.url, key_id, secret)
        with refused(code) as raised:
            client.list_queues()
        assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
        client.close()


def test_a_key_that_is_not_for_signatures_signs_nothing(locked: RunningServer) -> None:
    key_id, token = locked.new_key_and_id("read")
    client = sqs_client(locked.url, key_id, token)
    with refused("InvalidClientTokenId"):
        client.list_queues()
    client.close()


def test_a_revoked_key(locked: RunningServer) -> None:
    key_id, token = locked.new_key_and_id("read", signs=True)
    client = sqs_client(locked.url, key_id, token)
    client.list_queues()
    locked.call(locked.server.broker.keys.revoke(INSIDE, key_id))
    locked.call(locked.server.service.keys.load())
    with refused("InvalidClientTokenId"):
        client.list_queues()
    client.close()


def test_a_key_that_is_revoked_while_it_waits_gets_no_message(locked: RunningServer) -> None:
    key_id, token = locked.new_key_and_id("consume", "publish", "manage", signs=True)
    client, waiting = sqs_client(locked.url, key_id, token), locked.server.broker.waiting
    url = client.create_queue(QueueName="revoked")["QueueUrl"]
    other = sqs_client(locked.url, *locked.new_key_and_id("publish", "consume", signs=True))
    with ThreadPoolExecutor() as pool:
        call = pool.submit(receive, client, url, WaitTimeSeconds=20)
        locked.until(lambda: len(waiting) == 1)
        locked.call(locked.server.broker.keys.revoke(INSIDE, key_id))
        locked.call(locked.server.service.keys.load())
        other.send_message(QueueUrl=url, MessageBody="x")
        with refused("InvalidClientTokenId"):
            call.result(30)
    (got,) = receive(other, url, WaitTimeSeconds=20, AttributeNames=["ApproximateReceiveCount"])
    assert got["Attributes"] == {"ApproximateReceiveCount": "1"}
    client.close()
    other.close()


def test_a_key_may_do_what_its_verbs_and_namespaces_say(locked: RunningServer) -> None:
    maker = sqs_client(
        locked.url, *locked.new_key_and_id("manage", "read", namespaces=["shop"], signs=True)
    )
    # A key for one namespace is an account of its own.
    url = maker.create_queue(QueueName="orders")["QueueUrl"]
    assert url == f"{locked.url}/shop/orders"
    assert maker.list_queues()["QueueUrls"] == [url]
    with refused("AccessDenied"):
        maker.send_message(QueueUrl=url, MessageBody="x")
    with refused("AccessDenied"):
        maker.receive_message(QueueUrl=url)
    elsewhere = url.replace("/shop/", "/default/")
    for call in (maker.delete_queue, maker.get_queue_attributes, maker.purge_queue):
        with refused("AccessDenied"):  # whether it exists or not
            call(QueueUrl=elsewhere)
    sender = sqs_client(
        locked.url, *locked.new_key_and_id("publish", namespaces=["shop"], signs=True)
    )
    sender.send_message(QueueUrl=url, MessageBody="x")
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        sender.send_message(QueueUrl=f"{url}-none", MessageBody="x")
    sender.close()
    maker.close()


def test_a_key_is_made_over_http_and_by_the_command_line(
    locked: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    boss = {"X-Api-Key": locked.new_key("manage", "read")}
    with locked.client(headers=boss) as http:
        made = http.post("/api/v1/keys", json={"verbs": ["read"], "sqs": True}).json()
        assert made["sqs"] is True
        plain = http.post("/api/v1/keys", json={"verbs": ["read"]}).json()
        assert not plain.get("sqs", False)
    client = sqs_client(locked.url, made["id"], made["token"])
    client.list_queues()
    client.close()
    with pytest.raises(SystemExit, match="0"):
        main(["keys", "create", locked.location, "--sqs", "--verb", "read"])
    printed = capsys.readouterr()
    key_id = re.findall(r"access key id ([0-9a-f]{12})", printed.err)
    locked.call(locked.server.service.keys.load())
    client = sqs_client(locked.url, key_id[0], printed.out.strip())
    client.list_queues()
    client.close()


# -- signatures made by hand -----------------------------------------------------------------------


def signed(
    server: RunningServer, key: Key, headers: dict[str, str] | None = None
) -> dict[str, str]:
    """Return the headers of a request that botocore has signed."""
    headers = {"X-Amz-Target": "AmazonSQS.ListQueues", **(headers or {})}
    request = AWSRequest("POST", f"{server.url}/", headers=headers, data=LIST)
    SigV4Auth(Credentials(*key), "sqs", REGION).add_auth(request)
    return dict(request.headers.items())


def post(server: RunningServer, headers: dict[str, str], body: bytes = LIST) -> httpx2.Response:
    with server.client() as http:
        return http.post("/", headers=headers, content=body)


def code_of(answer: httpx2.Response) -> str:
    return str(answer.json()["__type"]).partition("#")[2]


def test_a_request_signed_by_hand_is_accepted(locked: RunningServer, key: Key) -> None:
    headers = {"X-Amz-Meta": "two   spaces", "X-Forwarded-For": "192.0.2.9"}
    answer = post(locked, signed(locked, key, headers=headers))
    assert answer.status_code == 200, answer.text


def test_another_body_target_or_header_does_not_match(locked: RunningServer, key: Key) -> None:
    good = signed(locked, key)
    wrong_target = {**good, "X-Amz-Target": "AmazonSQS.PurgeQueue"}
    assert code_of(post(locked, good, b'{"QueueNamePrefix": "y"}')) == "SignatureDoesNotMatch"
    assert code_of(post(locked, wrong_target)) == "SignatureDoesNotMatch"
    # A header that decides something must be signed.
    assert code_of(post(locked, {**good, "X-Amz-Other": "x"})) == "SignatureDoesNotMatch"


CHANGES: list[tuple[str, str, str]] = [
    (".*", "AWS4-HMAC-SHA256", "IncompleteSignatureException"),
    ("SignedHeaders", "Other", "IncompleteSignatureException"),
    ("/sqs/", "/s3/", "IncompleteSignatureException"),
    ("host;", "", "SignatureDoesNotMatch"),
    (".$", "", "SignatureDoesNotMatch"),
    ("eu-west-1", "eu-west-2", "SignatureDoesNotMatch"),
    ("Credential=", "Credential=\xff", "InvalidClientTokenId"),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_malformed_signature(locked: RunningServer, key: Key, number: int) -> None:
    pattern, instead, code = CHANGES[number]
    headers = {name.encode(): value.encode() for name, value in signed(locked, key).items()}
    wrong = re.sub(pattern, instead, headers[b"Authorization"].decode(), count=1)
    headers[b"Authorization"] = wrong.encode("latin-1")
    headers[b"X-Forwarded-For"] = b"198.51.100.%d" % number
    with locked.client() as http:
        answer = http.post("/", headers=headers, content=LIST)
    assert (answer.status_code, code_of(answer)) == (403, code)


def test_a_request_without_a_signature(locked: RunningServer) -> None:
    target = {"X-Amz-Target": "AmazonSQS.ListQueues"}
    answer = post(locked, target)
    assert (answer.status_code, code_of(answer)) == (403, "MissingAuthenticationToken")
    assert answer.headers["x-amzn-query-error"] == "MissingAuthenticationToken;Sender"
    # An API key can be sent as to any other interface.
    key = locked.new_key("read")
    assert post(locked, {**target, "X-Api-Key": key}).status_code == 200
    assert post(locked, {**target, "Authorization": f"Bearer {key}"}).status_code == 200
    answer = post(locked, {**target, "X-Api-Key": "wrong", "X-Forwarded-For": "198.51.100.251"})
    assert (answer.status_code, code_of(answer)) == (403, "InvalidClientTokenId")


def test_the_time_of_a_signature(locked: RunningServer, key: Key) -> None:
    """The clock of the broker is moved instead of the client's."""
    clock = locked.server.broker.clock
    good = signed(locked, key)
    for moved_s, said in [(301, "Signature expired"), (-301, "Signature not yet current")]:
        answer = _at(locked, clock.now_ns() + moved_s * 10**9, good)
        assert code_of(answer) == "SignatureDoesNotMatch"
        assert said in answer.json()["message"]
    assert _at(locked, clock.now_ns() + 290 * 10**9, good).status_code == 200
    wrong_day = {**good, "X-Amz-Date": "2" + good["X-Amz-Date"][1:8] + "T250000Z"}
    assert code_of(post(locked, wrong_day)) == "IncompleteSignatureException"


def _at(server: RunningServer, now_ns: int, headers: dict[str, str]) -> httpx2.Response:
    broker = server.server.broker
    clock = broker.clock

    class Moved:
        def __getattr__(self, name: str) -> Any:
            return (lambda: now_ns) if name == "now_ns" else getattr(clock, name)

    broker.clock = Moved()
    try:
        return post(server, headers)
    finally:
        broker.clock = clock


def test_many_wrong_signatures_of_one_address_are_throttled(
    locked: RunningServer, key: Key
) -> None:
    headers = signed(locked, (key[0], "wrong" * 20))
    headers["X-Forwarded-For"] = "198.51.100.252"
    codes = [code_of(post(locked, headers)) for _ in range(30)]
    assert codes[0] == "SignatureDoesNotMatch"
    assert codes[-1] == "RequestThrottled"
    assert post(locked, signed(locked, key)).status_code == 200  # of another address


# -- what is stored --------------------------------------------------------------------------------


def test_only_hashes_of_a_key_are_stored() -> None:
    key, token = make_key("test", ["read"], None, 1, signs=True)
    stored = dump_keys([key])
    assert token.encode() not in stored
    assert token[-16:].encode() not in stored
    assert load_keys(stored) == [key]
    assert key.signing_digest == hashlib.sha256(b"AWS4" + token.encode()).hexdigest()
    assert b"signing" not in dump_keys([make_key("test", ["read"], None, 1)[0]])


def test_a_value_of_ones_own_must_be_long_enough_to_sign() -> None:
    with pytest.raises(InvalidInput, match="61"):
        make_key("test", ["read"], None, 1, "x" * 60, signs=True)
    key, token = make_key("test", ["read"], None, 1, "x" * 61, signs=True)
    assert key.is_own and token == "x" * 61


# -- without keys ----------------------------------------------------------------------------------


def test_without_keys_any_signature_is_accepted(server: RunningServer) -> None:
    for key_id, secret in [("any", "any"), ("AKIAIOSFODNN7EXAMPLE", "x" * 40)]:
        client = sqs_client(server.url, key_id, secret)
        client.list_queues()
        client.close()
