"""Which queue a location and a name choose."""

from pathlib import Path

import pytest

import penstock
import penstock.arrow
from penstock.arrow.locations import location_options, queues_at, queues_of_job
from penstock.errors import InvalidInput
from penstock.spark.writers import check_target
from tests.spark.in_process import rows

WRONG_NAMES = [
    *("other/orders", "Shop/orders", "shop/mails", "mails", "../../../orders", "/orders", "shop/"),
    *("shop//orders", "data/shop/orders", "orders/"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with two queues."""
    for name in ("orders", "mails"):
        with penstock.open(tmp_path / "data" / "shop" / name) as queue:
            queue.enqueue(name)
    return tmp_path / "data"


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_directory_of_a_queue_is_not_read_under_another_name(data: Path, name: str) -> None:
    orders = str(data / "shop" / "orders")
    calls = (
        lambda: penstock.arrow.read(orders, queue=name),
        lambda: rows(orders, queue=name),
        lambda: rows(orders, subscribe=f"orders,{name}"),
        lambda: queues_of_job(orders, name),
        lambda: check_target(orders, name),
    )
    for call in calls:
        with pytest.raises(InvalidInput, match=r"the queue at .*orders is shop/orders") as caught:
            call()
        assert repr(name) in str(caught.value)


@pytest.mark.parametrize("name", ["orders", "shop/orders"])
def test_a_directory_of_a_queue_is_read_under_its_own_name(
    data: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data / "shop")
    for orders in (str(data / "shop" / "orders"), "orders", "./orders/", "../shop/orders"):
        found = penstock.arrow.read(orders, queue=name, columns="payload").read_all()
        assert found["payload"].to_pylist() == [b"orders"]
        assert [one.path for one in queues_at(orders, names=[name])] == [orders]
        assert check_target(orders, name).path == orders


def test_names_with_escaped_characters_are_those_of_the_queue(tmp_path: Path) -> None:
    """`Shop.eu/Orders` is in the directory `+shop++eu/+orders`."""
    orders = tmp_path / "+shop++eu" / "+orders"
    penstock.open(orders).close()
    for name in ("Shop.eu/Orders", "Orders", "+orders"):
        assert queues_at(str(orders), names=[name])
    for name in ("shop.eu/orders", "+shop++eu/+orders", "orders"):
        with pytest.raises(InvalidInput, match="is Shop.eu/Orders"):
            queues_at(str(orders), names=[name])


def test_a_queue_outside_a_data_directory_has_no_namespace(tmp_path: Path) -> None:
    """`My Shop` is not a namespace."""
    orders = tmp_path / "My Shop" / "orders"
    penstock.open(orders).close()
    assert queues_at(str(orders), names=["orders"])
    for name in ("My Shop/orders", "shop/orders", "default/orders"):
        with pytest.raises(InvalidInput, match=r"is orders, in no namespace"):
            queues_at(str(orders), names=[name])


@pytest.mark.parametrize("location", ["", " "])
def test_an_empty_location_is_not_the_current_directory(
    data: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data / "shop" / "orders")
    calls = (
        lambda: penstock.arrow.read(location),
        lambda: queues_of_job(location, None),
        lambda: location_options(location, None),
        lambda: check_target(location, None),
    )
    for call in calls:
        with pytest.raises(InvalidInput, match="is empty"):
            call()
    assert penstock.arrow.read(".").read_all().num_rows == 1


@pytest.mark.parametrize("at", ["loop", "shop/loop"])
def test_a_link_to_itself_in_a_data_directory_is_ignored(data: Path, at: str) -> None:
    before = queues_at(str(data))
    (data / at).symlink_to("loop")
    assert queues_at(str(data)) == before


def test_a_queue_whose_directory_has_no_name_of_the_broker_is_reported_once(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("orders.bad", "old orders"):
        penstock.open(data / "shop" / name).close()
    for _ in range(2):
        assert [queue.key for queue in queues_at(str(data))] == ["shop/mails", "shop/orders"]
    escaped, other = sorted(caplog.messages)[::-1]
    assert f"{data}/shop/orders.bad is left out" in escaped
    assert "rename it to orders++bad" in escaped
    assert f"{data}/shop/old orders is left out" in other
    assert "rename it" not in other
    (data / "shop" / "orders.bad").rename(data / "shop" / "orders++bad")
    assert "shop/orders.bad" in [queue.key for queue in queues_at(str(data))]
