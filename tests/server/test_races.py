"""Two clients after one message: exactly one has it."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.running import RunningServer, queue_path


@pytest.mark.parametrize("lease_s", [0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.05])
def test_an_ack_races_the_end_of_its_lease_and_exactly_one_wins(
    server: RunningServer, queue: str, lease_s: float
) -> None:
    """Either it is acked and nobody gets it again, or it is somebody else's and the ack is 410."""
    publish, lease = queue_path(queue, "messages"), queue_path(queue, "lease")
    with server.client() as http:
        http.put(queue_path(queue), json={"backoff_base_s": 0, "max_attempts": 100})
    for _ in range(3):
        with server.wire() as first, server.wire() as second:
            first.json_request("POST", publish, {"payload": "raced for"})
            assert first.answer().status == 201
            first.json_request("POST", lease, {"lease_s": lease_s})
            [leased] = first.answer().json["messages"]
            second.json_request("POST", lease, {"wait_s": 30})
            first.json_request("POST", "/api/v1/settle", {"ack": [leased["receipt"]]})
            is_acked = first.answer().status == 200
            if is_acked:  # the second gets something else
                first.json_request("POST", publish, {"payload": "another"})
                assert first.answer().status == 201
            [got] = second.answer().json["messages"]
            assert got["payload"] == ("another" if is_acked else "raced for")
            assert got["attempt"] == (1 if is_acked else 2)
            second.json_request("POST", "/api/v1/settle", {"ack": [got["receipt"]]})
            assert second.answer().status == 200


def test_many_ack_one_receipt_and_it_is_done_once(server: RunningServer, queue: str) -> None:
    """The others are told that it was done before, which is fine; a nack comes too late."""
    with server.client() as http:
        http.post(queue_path(queue, "messages"), json={"payload": 1})
        [leased] = http.post(queue_path(queue, "lease"), json={}).json()["messages"]

    def ack(_: int) -> str:
        with server.wire() as wire:
            wire.json_request("POST", "/api/v1/settle", {"ack": [leased["receipt"]]})
            return str(wire.answer().json["results"][0]["status"])

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(ack, range(16)))
    assert sorted(outcomes) == ["done"] + ["repeated"] * 15
    with server.client() as http:
        late = http.post("/api/v1/settle", json={"nack": [{"receipt": leased["receipt"]}]})
        assert late.status_code == 410
        assert http.get(queue_path(queue)).json()["stats"]["acked"] == 1


def test_many_lease_and_each_message_goes_to_one(server: RunningServer, queue: str) -> None:
    count = 200
    with server.client() as http:
        http.post(queue_path(queue, "messages"), json=[{"payload": n} for n in range(count)])

    def take(_: int) -> list[int]:
        taken: list[int] = []
        with server.wire() as wire:
            while True:
                wire.json_request("POST", queue_path(queue, "lease"), {"max": 3})
                messages = wire.answer().json["messages"]
                if not messages:
                    return taken
                taken += [message["payload"] for message in messages]
                receipts = [message["receipt"] for message in messages]
                wire.json_request("POST", "/api/v1/settle", {"ack": receipts})
                assert wire.answer().status == 200

    with ThreadPoolExecutor(8) as pool:
        taken = [number for one in pool.map(take, range(8)) for number in one]
    assert sorted(taken) == list(range(count))


def test_a_queue_is_created_and_used_while_others_delete_it(
    server: RunningServer, queue: str
) -> None:
    with server.client() as http:

        def put(_: int) -> int:
            return http.put(queue_path(queue)).status_code

        def publish(_: int) -> int:
            return http.post(queue_path(queue, "messages"), json={"payload": 1}).status_code

        def lease(_: int) -> int:
            return http.post(queue_path(queue, "lease"), json={}).status_code

        def delete(_: int) -> int:
            return http.delete(queue_path(queue)).status_code

        with ThreadPoolExecutor(8) as pool:
            calls = [pool.map(call, range(40)) for call in (put, publish, lease, delete)]
            put_status, published, leased, deleted = [set(call) for call in calls]
    assert put_status <= {200, 201}
    assert (published, leased) == ({201}, {200})
    assert deleted <= {204, 404}
