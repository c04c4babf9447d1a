"""The shop: makes orders and posts them over HTTP, some twice, some late and some bad."""

import http.client
import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from threading import Event, Lock, Thread
from urllib.parse import urlsplit

PRODUCTS = {"tea": 450, "coffee": 790, "cocoa": 620, "biscuits": 310}  # cents
_PATH = "/api/v1/namespaces/shop/queues/orders/messages"
_TIMEOUT_S = 10.0
_RETRY_PAUSE_S = 0.2
_ATTEMPTS_MAX = 600  # two minutes: as long as the Spark source tries


@dataclass(slots=True)
class Published:
    """What the broker has acknowledged. Shared by the threads of a shop."""

    orders: dict[str, str] = field(default_factory=dict)  # kind of each order, by id
    bad_payloads: int = 0  # without an order id
    answers: Counter[str] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)


class Shop:
    """A thread that posts orders until it is stopped. Use several for a busier shop."""

    def __init__(
        self, url: str, published: Published, *, name: str, rate_per_s: float, lateness_s: int
    ) -> None:
        self._address = urlsplit(url).netloc
        self._published = published
        self._name = name
        self._pause_s = 1 / rate_per_s
        self._lateness_s = lateness_s
        self._random = Random(name)
        self._stopping = Event()
        self._connection: http.client.HTTPConnection | None = None
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and raise what the thread raised."""
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            for number in count():
                self.post(number)
                if self._stopping.wait(self._pause_s):
                    break
        except BaseException as error:
            self._error = error
        finally:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def post(self, number: int, kind: str | None = None) -> None:
        """Post one order until the broker has acknowledged it, some of them twice."""
        kind = (
            kind
            or self._random.choices(
                ("good", "slow", "late", "bad value", "no JSON", "twice"), (85, 4, 2, 2, 2, 5)
            )[0]
        )
        body = self._body(number, kind)
        for _ in range(2 if kind == "twice" else 1):
            self._send(body)
        with self._published.lock:
            if kind == "no JSON":
                self._published.bad_payloads += 1
            else:
                self._published.orders[f"{self._name}-{number}"] = kind

    def _body(self, number: int, kind: str) -> bytes:
        if kind == "no JSON":
            return b"order %d: one tea, please" % number
        age_s = {"slow": 0.3 * self._lateness_s, "late": 2.0 * self._lateness_s}.get(kind, 0.0)
        ordered_at = datetime.now(UTC) - timedelta(seconds=age_s)
        product = self._random.choice(sorted(PRODUCTS))
        order = {
            "order_id": f"{self._name}-{number}",
            "customer": f"customer {self._random.randrange(50)}",
            "product": product,
            "quantity": -1 if kind == "bad value" else self._random.randrange(1, 5),
            "cents": PRODUCTS[product],
            "ordered_at": ordered_at.isoformat(),
        }
        return json.dumps(order).encode()

    def _send(self, body: bytes) -> None:
        """Post until there is an answer. After a lost answer the order may be there twice."""
        headers = {"Content-Type": "application/vnd.shop.order+json"}
        for _ in range(_ATTEMPTS_MAX):
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection(self._address, timeout=_TIMEOUT_S)
                self._connection.request("POST", _PATH, body, headers)
                answer = self._connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                outcome = "no answer"
            else:
                outcome = str(answer.status)
            with self._published.lock:
                self._published.answers[outcome] += 1
            if outcome == "201":
                return
            if outcome not in ("no answer", "503", "429"):
                raise RuntimeError(f"the broker refuses an order with {outcome}")
            self.close()
            Event().wait(_RETRY_PAUSE_S)
        raise RuntimeError(f"no order was accepted in {_ATTEMPTS_MAX} attempts")
