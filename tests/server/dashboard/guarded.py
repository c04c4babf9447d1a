"""A server that needs keys, and clients with a session."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from penstock.broker import KeyEditor
from tests.server.dashboard.seeding import Seeder
from tests.server.running import RunningServer

HTML = {"accept": "text/html"}


class Guarded:
    """A server with keys."""

    def __init__(self, running: RunningServer) -> None:
        self.running = running
        self.manager = self.new_key("publish", "consume", "manage", "read")
        self.reader = self.new_key("read")
        self.http = running.client(headers={"x-api-key": self.manager})
        self.seed = Seeder(self.http)
        self.seed.kill("guarded", 1, 2)
        self.seed.publish("guarded", 1, 2, 3)

    def new_key(self, *verbs: str, namespaces: list[str] | None = None) -> str:
        """Return a new key. In the server's loop: the browser has one in this thread."""
        service = self.running.server.service
        editor = KeyEditor(service.broker.store)
        _, token = self.running.call(editor.create("test", verbs, namespaces))
        self.running.call(service.keys.load())
        return token

    def revoke(self, token: str) -> None:
        editor = KeyEditor(self.running.server.service.broker.store)
        self.running.call(editor.revoke(token.split("_")[1]))

    def client(self) -> httpx2.Client:
        return self.running.client(headers=HTML)

    @contextmanager
    def logged_in(self, key: str) -> Iterator[httpx2.Client]:
        with self.client() as client:
            answer = client.post("/dashboard/login", data={"csrf": token(client), "key": key})
            assert answer.status_code == 303, answer.text
            yield client


def token(client: httpx2.Client, path: str = "/dashboard") -> str:
    """Return the token of the forms of this client's session."""
    found = re.search(r'name="csrf" value="([0-9a-f]{40})"', client.get(path).text)
    assert found
    return found[1]
