"""`penstock serve`: run the broker."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from penstock.cli.options import argument, option
from penstock.cli.targets import is_queue_directory
from penstock.cli.terminal import print_json_line, print_stderr
from penstock.errors import InvalidInput
from penstock.extras import requires_extra

if TYPE_CHECKING:
    from penstock.server.configuration import Configuration
    from penstock.server.server import Server


def serve(
    data: Annotated[
        str | None,
        argument(
            "DIR",
            "Data directory, or memory: to store nothing. Default: ./data, or the configuration.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        option("PostgreSQL database instead of a directory: postgresql://…", metavar="URL"),
    ] = None,
    host: Annotated[str | None, option("Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[
        int | None, option("Port to listen on; 0: any free one. Default: 8080.")
    ] = None,
    unix: Annotated[
        str | None, option("Path of a Unix socket to listen on as well.", metavar="PATH")
    ] = None,
    unix_mode: Annotated[
        str | None, option("Permissions of the Unix socket. Default: 0600.", metavar="MODE")
    ] = None,
    beanstalk: Annotated[
        str | None,
        option("Address to speak the beanstalk protocol on as well.", metavar="HOST:PORT"),
    ] = None,
    sqs: Annotated[
        str | None,
        option("Address to serve SQS alone on as well.", metavar="HOST:PORT"),
    ] = None,
    no_tcp: Annotated[bool, option("Listen on the Unix socket only.", "--no-tcp")] = False,
    grpc: Annotated[
        str | None, option("Address to serve gRPC on as well.", metavar="HOST:PORT")
    ] = None,
    config: Annotated[
        Path | None, option("Configuration file: penstock.toml.", metavar="FILE")
    ] = None,
    insecure: Annotated[
        bool, option("Allow other machines to connect although no key exists.", "--insecure")
    ] = False,
    json: Annotated[
        bool, option("Print the URL as JSON once the broker listens.", "--json")
    ] = False,
) -> None:
    """Serve the queues of a directory or database over HTTP, until SIGTERM or Ctrl-C.

    Settings come from the file, then the environment (PENSTOCK_SERVER_PORT),
    then these options: the last one wins. SIGHUP reads them again.
    """
    with requires_extra("server"):
        from penstock.broker.embedded.layout import check_has_no_queues_of_tasks
        from penstock.checking import MEMORY, is_url, without_password
        from penstock.server.configuration import load_configuration
        from penstock.server.serve import serve as serve_until_stopped
    if data is not None and store is not None:
        raise InvalidInput("give a directory or --store, not both")

    def read() -> "Configuration":
        flags = {
            "data": store or data,
            "host": host,
            "port": port,
            "tcp": False if no_tcp else None,
            "unix": unix,
            "unix_mode": unix_mode,
            "beanstalk": beanstalk,
            "sqs": sqs,
            "grpc": grpc,
            "insecure": insecure or None,
        }
        return load_configuration(config, os.environ, flags)

    def on_listening(server: "Server") -> None:
        urls = server.urls
        if json:
            print_json_line({"url": urls[0], "urls": urls, "data": served, "pid": os.getpid()})
            sys.stdout.flush()
        else:
            hint = " (open it in a browser)" if settings.tcp else ""
            print_stderr(f"serving {served} at {' and '.join(urls)}{hint}; Ctrl-C stops it")

    configuration = read()
    settings = configuration.server
    served = without_password(settings.data)
    if is_queue_directory(settings.data):
        raise InvalidInput(
            f"{settings.data} is a queue itself: serve another directory, and move this one to "
            f"NAMESPACE/QUEUE in it"
        )
    if not is_url(settings.data) and settings.data != MEMORY:
        check_has_no_queues_of_tasks(settings.data)
    serve_until_stopped(configuration, read_again=read, on_listening=on_listening)
