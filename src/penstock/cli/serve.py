"""`penstock serve`: the broker."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.extras import needing
from penstock.cli.terminal import complain, write_json_line
from penstock.errors import InvalidInput
from penstock.ledger.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from penstock.server.configuration import Configuration
    from penstock.server.server import Server


def serve(
    data: Annotated[
        str | None,
        typer.Argument(metavar="DIR", help="The data directory; ./data.", show_default=False),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="8080; 0: any that is free.")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings, such as penstock.toml.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without keys.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Say as JSON where it listens, when it does.")
    ] = False,
) -> None:
    """Serve the queues of a directory over HTTP, until SIGTERM or Ctrl-C.

    Settings come from the file, then from the environment (PENSTOCK_SERVER_PORT), then from here:
    the later wins. SIGHUP reads them again.
    """
    with needing("server"):
        from penstock.server.configuration import load_configuration
        from penstock.server.serve import serve as serve_until_stopped

    def read() -> "Configuration":
        flags = {"data": data, "host": host, "port": port, "insecure": insecure or None}
        return load_configuration(config, os.environ, flags)

    def on_listening(server: "Server") -> None:
        url = f"{scheme}://{_bracketed(settings.host)}:{server.port}"
        if json:
            write_json_line({"url": url, "data": settings.data, "pid": os.getpid()})
            typer.get_text_stream("stdout").flush()
        else:
            complain(f"serving {settings.data} at {url} (open it in a browser); Ctrl-C stops it")

    configuration = read()
    settings = configuration.server
    if (Path(settings.data) / MANIFEST_NAME).exists():
        raise InvalidInput(
            f"{settings.data} is a queue itself: serve another directory, and move this one to "
            f"NAMESPACE/QUEUE in it"
        )
    scheme = "https" if settings.tls_cert else "http"
    serve_until_stopped(configuration, read_again=read, on_listening=on_listening)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
