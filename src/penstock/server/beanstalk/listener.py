"""The listener of the beanstalk protocol: its sockets, connections and metrics."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from penstock.broker import Caller, check_name
from penstock.broker.access import EVERY_VERB
from penstock.server.beanstalk.connection import new_connection
from penstock.server.beanstalk.tubes import Tube, Tubes
from penstock.server.listeners import listen_at, parse_address, refuse_unless_local
from penstock.server.service import Service

if TYPE_CHECKING:
    from penstock.server.beanstalk.connection import Connection

log = logging.getLogger("penstock.server")

SETTING = "beanstalk"
_KEEPALIVE = (  # a peer that vanished is noticed after two minutes
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 60),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 20),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
)


class BeanstalkListener:
    """Serves the tubes of one namespace."""

    def __init__(self, service: Service) -> None:
        settings = service.settings
        self.service = service
        self._address = parse_address(SETTING, settings.beanstalk)
        self._namespace = check_name("namespace", settings.beanstalk_namespace)
        self._namespaces = frozenset({self._namespace})
        inside = Caller("beanstalk", EVERY_VERB, self._namespaces)
        self.tubes = Tubes(service.broker, self._namespace, inside)
        self.tubes.on_pause.append(self._pause_changed)
        self.connections: set[Connection] = set()
        self.commands: Counter[str] = Counter()
        self.total_connections = 0
        self.started_ns = service.broker.clock.monotonic_ns()
        self._refused: Counter[str] = Counter()
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._port = self._address.port
        service.broker.metrics.registry.register(self)

    # -- life --------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return self._address.url("beanstalk", self._port)

    def bind(self) -> None:
        service = self.service
        refuse_unless_local(
            SETTING, self._address, service.settings, keys_required=service.keys.required
        )
        self._sockets = listen_at(SETTING, self._address)
        self._port = self._sockets[0].getsockname()[1]
        for one in self._sockets:
            for level, name, value in _KEEPALIVE:  # connections inherit them
                if hasattr(socket, name):
                    one.setsockopt(level, getattr(socket, name), value)

    async def start(self) -> None:
        await self.tubes.load()
        loop = asyncio.get_running_loop()
        while self._sockets:
            one = self._sockets.pop()
            self._servers.append(
                await loop.create_server(lambda: new_connection(self, loop), sock=one)
            )

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for one in self._sockets:
            one.close()
        self._sockets = []

    async def finish(self, within_s: float) -> None:
        """Do nothing: the server waits for all connections, see `Service.connections`."""

    # -- connections -------------------------------------------------------------------------------

    def caller_of(self, address: str) -> Caller:
        """Return who calls: any client of an address, in this namespace only."""
        return Caller(f"ip:{address}", EVERY_VERB, self._namespaces)

    def opened(self, connection: "Connection") -> None:
        self.connections.add(connection)
        self.total_connections += 1

    def closed(self, connection: "Connection") -> None:
        self.connections.discard(connection)

    def _pause_changed(self, tube: Tube) -> None:
        for connection in list(self.connections):
            if connection.reservation is not None:
                connection.reservation.pause_changed(tube)

    # -- metrics -----------------------------------------------------------------------------------

    def count_refusal(self, answer: str) -> None:
        self._refused[answer] += 1

    def refusals(self, answer: str) -> int:
        return self._refused[answer]

    def refuse_http(self, client: str) -> None:
        """Count an HTTP request that was sent to this port. The first is logged."""
        if not self._refused["http"]:
            fields = {"client": client, "listener": self.url}
            log.warning("an HTTP request was sent to the beanstalk port", extra={"fields": fields})
        self.count_refusal("http")

    def collect(self) -> Iterable[Metric]:
        """Return the series, for the registry."""
        return series(
            self.commands,
            self._refused,
            connections=len(self.connections),
            reserved=sum(len(one.jobs) for one in self.connections),
            waiting=sum(one.reservation is not None for one in self.connections),
        )


def series(
    commands: Mapping[str, int],
    errors: Mapping[str, int],
    *,
    connections: int,
    reserved: int,
    waiting: int,
) -> list[Metric]:
    """Return the series of a listener."""
    received = CounterMetricFamily(
        "penstock_beanstalk_commands", "Beanstalk commands received.", labels=["command"]
    )
    for name, count in sorted(commands.items()):
        received.add_metric([name], count)
    failed = CounterMetricFamily(
        "penstock_beanstalk_errors",
        "Beanstalk commands that failed, by answer; slow: one that did not arrive in time; http: a "
        "request of HTTP.",
        labels=["answer"],
    )
    for answer, count in sorted(errors.items()):
        failed.add_metric([answer], count)
    gauges = {
        "connections": ("Open beanstalk connections.", connections),
        "reserved": ("Jobs that open beanstalk connections have reserved.", reserved),
        "waiting": ("Beanstalk connections whose reserve waits for a job.", waiting),
    }
    return [
        received,
        failed,
        *(
            GaugeMetricFamily(f"penstock_beanstalk_{name}", text, value)
            for name, (text, value) in gauges.items()
        ),
    ]
