"""The arguments of the job `stream`, checked before Spark starts."""

import math
from pathlib import Path

import pytest

import penstock
from penstock.client.options import KEY_VARIABLE
from penstock.errors import InvalidInput
from penstock.operations import Verb
from penstock.spark.jobs import check_stream, stream
from tests.server.running import RunningServer


@pytest.mark.parametrize("target", ["orders", "orders/", "./orders", "link"])
def test_a_queue_is_not_streamed_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    penstock.open("orders").close()
    (tmp_path / "link").symlink_to("orders")
    with pytest.raises(InvalidInput, match="both source and target"):
        check_stream("orders", target, "queue", None, None)
    check_stream("orders", "other", "queue", None, None)
    with pytest.raises(InvalidInput, match="would mix"):
        check_stream("orders", target, "parquet", None, None)


def test_one_of_many_queues_is_not_streamed_to_itself(tmp_path: Path) -> None:
    data = str(tmp_path)
    for name in ("shop/orders", "shop/mails"):
        penstock.open(f"{data}/{name}").close()
    with pytest.raises(InvalidInput, match="both source and target"):
        check_stream(data, data, "queue", None, "shop/mails")
    check_stream(data, data, "queue", "shop/orders", "shop/mails")


def test_a_queue_is_not_streamed_to_itself_by_path_and_url(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        for name in ("orders", "mails"):
            with penstock.open(f"{server.url}/shop/{name}") as queue:
                queue.enqueue(b"x")
        path, url = f"{tmp_path}/data/shop/orders", f"{server.url}/shop/orders"
        other_url = url.replace("127.0.0.1", "localhost") + "/"
        named = (server.url, "shop/orders")
        locations = [(path, None), (url, None), (other_url, None), named]
        for source, queue_name in locations:
            for target, target_queue in locations:
                with pytest.raises(InvalidInput, match="both source and target"):
                    check_stream(source, target, "queue", queue_name, target_queue)
            check_stream(source, f"{server.url}/shop/mails", "queue", queue_name, None)
            check_stream(source, f"{server.url}/shop/new", "queue", queue_name, None)
            check_stream(source, f"{server.url}/nowhere/new", "queue", queue_name, None)
        for created in ("shop/new", "nowhere"):
            assert not (tmp_path / "data" / created).exists()


def test_a_key_that_may_only_publish_does_not_hide_that_it_is_the_same_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningServer(tmp_path / "data") as server:
        with penstock.open(f"{server.url}/shop/orders") as queue:
            queue.enqueue(b"x")
        monkeypatch.setenv(KEY_VARIABLE, server.new_key(Verb.PUBLISH))
        with pytest.raises(InvalidInput, match="both source and target"):
            check_stream(
                f"{tmp_path}/data/shop/orders", f"{server.url}/shop/orders", "queue", None, None
            )


@pytest.mark.parametrize("interval_s", [-1.0, math.nan, math.inf])
def test_an_interval_that_is_none_is_refused(tmp_path: Path, interval_s: float) -> None:
    penstock.open(str(tmp_path / "orders")).close()
    with pytest.raises(InvalidInput, match="interval_s is"):
        stream(
            None,  # type: ignore[arg-type]  # refused before Spark is used
            str(tmp_path / "orders"),
            str(tmp_path / "copy"),
            checkpoint=str(tmp_path / "checkpoint"),
            interval_s=interval_s,
        )
