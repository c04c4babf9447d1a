"""moto's server of S3 over HTTP, which can be told to misbehave."""

import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "archive-bucket"
GOOD_KEY = "good-key"
_KEY_OF = re.compile(r"Credential=([^/]+)/")
_Answer = Callable[..., object]


@dataclass(slots=True)
class Faults:
    """What the server does wrong. `puts` counts the writes that it accepted, by key."""

    torn_puts: str = ""  # of keys that have this in their name, the last byte is changed
    before_put: Callable[[str], None] | None = None
    puts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server, with one bucket."""

    url: str
    faults: Faults

    def location(self, prefix: str, *, key: str = GOOD_KEY, bucket: str = BUCKET) -> str:
        return (
            f"s3://{bucket}/{prefix}?endpoint={self.url}&region=us-east-1"
            f"&access_key={key}&secret_key=very-secret"
        )

    @property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=GOOD_KEY,
            aws_secret_access_key="very-secret",
        )


@contextmanager
def s3_server() -> Iterator[S3Server]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)
    faults = Faults()

    def answer(environ: dict[str, Any], start: _Answer) -> Iterable[bytes]:
        key = _KEY_OF.search(environ.get("HTTP_AUTHORIZATION", ""))
        if key is not None and key[1] != GOOD_KEY:
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>"]
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] == "PUT" and path.strip("/") != BUCKET:
            if faults.before_put is not None:
                faults.before_put(path)
            faults.puts.append(path)
            if faults.torn_puts and faults.torn_puts in path:
                _tear(environ)
        return app(environ, start)  # type: ignore[no-any-return]

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made = S3Server(f"http://127.0.0.1:{server.port}", faults)
    made.client.create_bucket(Bucket=BUCKET)
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _tear(environ: dict[str, Any]) -> None:
    """Change the last byte of the body: what arrives is not what was sent."""
    body = environ["wsgi.input"]

    class Torn:
        def read(self, size: int = -1) -> bytes:
            return _changed(body.read(size))

        def readline(self, size: int = -1) -> bytes:
            return body.readline(size)  # type: ignore[no-any-return]

    environ["wsgi.input"] = Torn()


def _changed(data: bytes) -> bytes:
    return data[:-200] + bytes(byte ^ 0x55 for byte in data[-200:-100]) + data[-100:]


@contextmanager
def s3_process() -> Iterator[S3Server]:
    """The same server in a process of its own.

    `deltalake` keeps Python's lock while it waits for some answers, so that a server in the same
    process could not give them.
    """
    program = [sys.executable, "-m", "tests.archive.s3_server"]
    with subprocess.Popen(program, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield S3Server(process.stdout.readline().decode().strip(), Faults())
        finally:
            process.stdin.close()  # it ends
            process.wait(60)


if __name__ == "__main__":
    with s3_server() as running:
        print(running.url, flush=True)
        sys.stdin.read()
