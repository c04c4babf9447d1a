"""The settings of a server. `docs/server.md` lists them; a test compares the two."""

import ipaddress
import os
import re
from dataclasses import dataclass

from penstock.checking import check_choice, check_fields
from penstock.errors import InvalidInput
from penstock.names import DEFAULT_NAMESPACE

KIB = 1 << 10
MIB = 1 << 20

UNIX_PROXIES = "unix"  # in `trusted_proxies`: the clients of the Unix socket
_MOST_UNIX_BYTES = 107  # of `sun_path` on Linux, without the NUL at its end
_MODE = re.compile(r"0?[0-7]{3}")
PREFIX = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,63}){1,8}")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of the transports; those of queues and callers are the broker's."""

    # where
    data: str = "./data"  # a directory, or "memory:"
    host: str = "127.0.0.1"
    port: int = 8080  # 0: any that is free
    tcp: bool = True  # false: listen on the Unix socket only
    unix: str = ""  # path of a Unix socket to listen on
    unix_mode: str = "0600"  # its permissions, in octal
    insecure: bool = False  # listen elsewhere than on loopback even without keys
    beanstalk: str = ""  # HOST:PORT of the beanstalk protocol
    beanstalk_namespace: str = DEFAULT_NAMESPACE  # whose queues are its tubes
    sqs: str = ""  # HOST:PORT of SQS alone; it is served at `port` as well
    sqs_namespace: str = DEFAULT_NAMESPACE  # of SQS clients whose key is not for another one
    tls_cert: str = ""  # PEM files; both or none
    tls_key: str = ""
    grpc: str = ""  # HOST:PORT of gRPC; needs the extra `grpc`
    # how long
    header_timeout_s: float = 10.0  # from a request's first byte to the end of its headers
    body_timeout_s: float = 30.0  # for its body; a second more for each 64 KiB that arrived
    idle_timeout_s: float = 60.0  # between requests, and for taking an answer
    shutdown_s: float = 30.0  # in all, from the signal to the exit
    # how much
    max_body_bytes: int = 32 * MIB
    max_buffered_bytes: int = 256 * MIB  # bodies of all connections together
    max_headers: int = 100
    max_header_bytes: int = 16 * KIB
    max_url_bytes: int = 8 * KIB
    max_connections: int = 10_000
    # WebSockets
    ws_max_frame_bytes: int = 1 * MIB
    ws_ping_s: float = 20.0  # between pings
    ws_pong_s: float = 20.0  # for the pong
    # gRPC
    grpc_max_calls: int = 10_000  # under way at the same time, streams included
    grpc_max_message_bytes: int = 4 * MIB  # of a request
    grpc_ping_s: float = 30.0  # between pings of a connection without traffic
    grpc_pong_s: float = 20.0  # for the answer to a ping
    # the dashboard
    dashboard: bool = True  # false: / and /dashboard have no pages
    dashboard_prefix: str = ""  # path under which a proxy shows this server, like /penstock
    # trust
    trusted_proxies: tuple[str, ...] = ()  # networks, or "unix", whose X-Forwarded-For is trusted
    cors_origins: tuple[str, ...] = ()  # origins whose pages may call; "*": all
    # observing
    log_level: str = "info"
    log_format: str = "auto"  # text on a terminal, JSON elsewhere
    access_log: bool = False  # a line for each request, not only for those that failed
    dialect_metrics: bool = True  # /metrics also under the names of RivetQ and EpochQueue
    tracing: bool = False  # OpenTelemetry spans; needs the extra `otel`
    profiling: bool = False  # GET /debug/profile, for keys with manage

    def __post_init__(self) -> None:
        check_fields(self, _RANGES)
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidInput("tls_cert and tls_key belong together: give both, or none")
        self._check_unix()
        if self.dashboard_prefix and not PREFIX.fullmatch(self.dashboard_prefix):
            raise InvalidInput(
                f"dashboard_prefix is {self.dashboard_prefix!r}; it must be a path like /penstock, "
                f"without a slash at its end"
            )
        self.proxy_networks()
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise InvalidInput(
                    f"cors_origins has {origin!r}; an origin is like https://app.example.com"
                )

    def _check_unix(self) -> None:
        if not self.unix and not self.tcp:
            raise InvalidInput("tcp is false and unix names no socket: nothing to listen on")
        if "\0" in self.unix:
            raise InvalidInput("unix has a NUL character; it must be the path of a file")
        size = len(os.path.abspath(os.fsencode(self.unix)))
        if self.unix and size > _MOST_UNIX_BYTES:
            raise InvalidInput(
                f"unix is a path of {size} bytes; the system allows {_MOST_UNIX_BYTES}: use a "
                f"shorter one"
            )
        if not _MODE.fullmatch(self.unix_mode):
            raise InvalidInput(
                f"unix_mode is {self.unix_mode!r}; it must be octal digits in quotes, like '0660'"
            )

    def proxy_networks(self) -> "tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]":
        """Return the networks of trusted proxies."""
        try:
            return tuple(
                ipaddress.ip_network(network)
                for network in self.trusted_proxies
                if network != UNIX_PROXIES
            )
        except (ValueError, TypeError) as error:
            raise InvalidInput(
                f"trusted_proxies: {error}; a network is like 10.0.0.0/8 or 192.168.1.5; "
                f"clients of the Unix socket are 'unix'"
            ) from None


# Settings that SIGHUP changes in a running server; the others need a restart.
RELOADABLE = frozenset(
    {
        "header_timeout_s",
        "body_timeout_s",
        "idle_timeout_s",
        "shutdown_s",
        "max_body_bytes",
        "max_buffered_bytes",
        "max_headers",
        "max_header_bytes",
        "max_url_bytes",
        "max_connections",
        "dashboard",
        "dashboard_prefix",
        "trusted_proxies",
        "cors_origins",
        "log_level",
        "access_log",
        "dialect_metrics",
        "profiling",
    }
)

_RANGES: dict[str, tuple[float, float]] = {
    "header_timeout_s": (0.01, 3600),
    "body_timeout_s": (0.01, 3600),
    "idle_timeout_s": (0.01, 86400),
    "shutdown_s": (0.1, 3600),
    "ws_ping_s": (0.01, 3600),
    "ws_pong_s": (0.01, 3600),
    "port": (0, 65535),
    "max_body_bytes": (1, 1 << 40),
    "max_buffered_bytes": (1, 1 << 50),
    "max_headers": (1, 10_000),
    "max_header_bytes": (64, 16 * MIB),
    "max_url_bytes": (64, 16 * MIB),
    "max_connections": (1, 1_000_000),
    "ws_max_frame_bytes": (1, 1 << 40),
    "grpc_max_calls": (1, 1_000_000),
    "grpc_max_message_bytes": (1 * KIB, 1 << 30),
    "grpc_ping_s": (1, 3600),
    "grpc_pong_s": (1, 3600),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("auto", "json", "text"),
}
