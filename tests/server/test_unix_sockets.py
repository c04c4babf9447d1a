"""A server on a Unix socket: beside TCP or instead of it."""

import logging
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from websockets.sync.client import unix_connect

import penstock
from penstock.errors import InvalidInput
from penstock.server.listening import UnixSocket
from penstock.server.settings import ServerSettings
from tests.server.running import RunningServer, queue_path
from tests.server.serving_process import ServingProcess
from tests.server.wire import Wire


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "p.sock")


@pytest.fixture
def running(tmp_path: Path, path: str) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data", unix=path, access_log=True) as server:
        yield server


def _client(path: str) -> httpx2.Client:
    return httpx2.Client(
        transport=httpx2.HTTPTransport(uds=path, verify=False), base_url="http://localhost"
    )


# -- serving ---------------------------------------------------------------------------------------


def test_both_sockets_serve_the_same_queues(running: RunningServer, path: str) -> None:
    with _client(path) as unix, running.client() as tcp:
        assert unix.post(queue_path("q", "messages"), json={"payload": 1}).status_code == 201
        leased = tcp.post(queue_path("q", "lease")).json()["messages"]
        assert [message["payload"] for message in leased] == [1]
    assert running.server.urls == [running.url, f"http+unix://{path.replace('/', '%2F')}"]


def test_it_may_serve_without_tcp(tmp_path: Path, path: str) -> None:
    # Other machines cannot connect, so that keys are not needed.
    with RunningServer(tmp_path / "data", unix=path, tcp=False, host="0.0.0.0") as server:
        assert server.port == 0
        with _client(path) as http:
            assert http.get("/readyz").status_code == 200


@pytest.mark.parametrize("mode", ["0600", "0660", "666"])
def test_the_mode_of_the_socket_is_as_configured(tmp_path: Path, path: str, mode: str) -> None:
    old = os.umask(0o077)
    try:
        with RunningServer(tmp_path / "data", unix=path, unix_mode=mode):
            assert stat.S_IMODE(os.stat(path).st_mode) == int(mode, 8)
    finally:
        os.umask(old)


def test_the_socket_and_its_lock_are_removed_at_shutdown(tmp_path: Path, path: str) -> None:
    with RunningServer(tmp_path / "data", unix=path):
        assert os.path.exists(path)
    assert os.listdir(tmp_path) == ["data"]


def test_a_socket_that_replaced_ours_is_not_removed(tmp_path: Path, path: str) -> None:
    with RunningServer(tmp_path / "data", unix=path), socket.socket(socket.AF_UNIX) as other:
        os.unlink(path)
        other.bind(path)
        inode = os.stat(path).st_ino
        Path(f"{path}.keep").touch()  # so that the inode is not used again
    assert os.stat(path).st_ino == inode


def test_a_socket_file_that_was_removed_is_made_again(tmp_path: Path, path: str) -> None:
    with RunningServer(tmp_path / "data", unix=path, unix_mode="0660") as running:
        with _client(path) as before:
            assert before.get("/api/v1/namespaces").status_code == 200
            os.unlink(path)
            with penstock.open(running.server.urls[-1] + "/shop/orders") as queue:
                assert queue.enqueue(b"x")  # tried again until there is a socket
            assert before.get("/api/v1/namespaces").status_code == 200  # connections are kept
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o660
    assert not os.path.lexists(path)


def test_a_websocket_over_it(running: RunningServer, path: str) -> None:
    with _client(path) as http:
        http.post(queue_path("q", "messages"), json={"payload": "x"})
    uri = f"ws://localhost{queue_path('q', 'stream')}"
    with unix_connect(path, uri) as stream:
        assert '"x"' in str(stream.recv(timeout=30))


def test_shutdown_answers_a_long_poll_over_it(tmp_path: Path, path: str) -> None:
    with RunningServer(tmp_path / "data", unix=path) as server, Wire(path) as wire:
        wire.json_request("POST", queue_path("q", "lease"), {"wait_s": 60})
        server.until(lambda: len(server.server.broker.waiting) == 1)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert wire.answer().json == {"messages": []}
        assert wire.is_closed_by_server()
        stopping.join()


def test_a_half_closed_client_is_answered_over_it(running: RunningServer, path: str) -> None:
    with Wire(path) as wire:
        wire.request("GET", "/livez")
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.answer().status == 200
        assert wire.is_closed_by_server()


def test_sighup_keeps_it_and_reports_a_change_of_its_path(tmp_path: Path, path: str) -> None:
    config = tmp_path / "penstock.toml"
    text = f"[server]\ndata = '{tmp_path / 'data'}'\ntcp = false\nunix = '{path}'\n"
    config.write_text(text)
    with ServingProcess(config) as process:
        assert process.wait_for("listening")["unix"] == path
        process.wait_for("ready")
        config.write_text(text.replace("p.sock", "other.sock"))
        process.signal(signal.SIGHUP)
        assert process.wait_for("reloaded")["need_restart"] == ["unix"]
        with _client(path) as http:
            assert http.get("/readyz").status_code == 200
        process.signal(signal.SIGTERM)
        process.wait_for("stopped")
    assert not os.path.exists(path)


# -- clients ---------------------------------------------------------------------------------------


def test_the_access_log_names_the_user(
    running: RunningServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), _client(path) as http:
        http.get("/livez")
    (line,) = [record.fields for record in caplog.records if record.message == "request"]  # type: ignore[attr-defined]
    assert line["client"] == f"unix:uid={os.getuid()}"


def test_wrong_keys_are_counted_for_the_user_or_for_the_address_that_its_proxy_reports(
    tmp_path: Path, path: str
) -> None:
    with (
        RunningServer(tmp_path / "data", unix=path, trusted_proxies=("unix",)) as server,
        _client(path) as http,
    ):
        server.new_key("read")
        refused = {"x-api-key": "psk_wrong"}
        for _ in range(50):
            answer = http.get("/metrics", headers={**refused, "x-forwarded-for": "192.0.2.1"})
            if answer.status_code == 429:
                break
        assert answer.status_code == 429
        other = http.get("/metrics", headers={**refused, "x-forwarded-for": "192.0.2.2"})
        assert other.status_code == 401
        assert http.get("/metrics", headers=refused).status_code == 401


def test_forwarded_addresses_are_not_trusted_unless_configured(
    running: RunningServer, path: str
) -> None:
    service = running.server.service
    peer = f"unix:uid={os.getuid()}"
    assert service.address_of({b"x-forwarded-for": b"192.0.2.1"}, peer) == peer


# -- paths that cannot be used ---------------------------------------------------------------------


def test_a_stale_socket_of_a_server_that_died_is_replaced(tmp_path: Path, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
        dead.listen()
    Path(f"{path}.lock").touch()
    with RunningServer(tmp_path / "data", unix=path), _client(path) as http:
        assert http.get("/livez").status_code == 200


def test_a_second_server_is_refused_and_the_first_keeps_its_socket(
    running: RunningServer, path: str
) -> None:
    with pytest.raises(InvalidInput, match=r"another server listens on .*p\.sock"):
        UnixSocket(ServerSettings(unix=path))
    with _client(path) as http:
        assert http.get("/livez").status_code == 200


def test_a_socket_of_another_program_is_refused_and_kept(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(InvalidInput, match="another process listens"):
            UnixSocket(ServerSettings(unix=path))
        assert os.path.exists(path) and not os.path.exists(f"{path}.lock")


def test_of_two_servers_that_find_a_stale_socket_one_wins(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    both = threading.Barrier(2)
    won: list[UnixSocket] = []
    refused: list[InvalidInput] = []

    def start() -> None:
        both.wait()
        try:
            won.append(UnixSocket(ServerSettings(unix=path)))
        except InvalidInput as error:
            refused.append(error)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(refused)) == (1, 1)
    won[0].socket.close()
    won[0].remove()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: os.mkdir(path), "is a directory"),
        (lambda path: Path(path).touch(), "is no socket"),
        (lambda path: os.symlink("/nowhere", path), "is no socket"),
    ],
)
def test_a_path_that_is_no_socket_is_refused_and_kept(
    path: str, make: "Callable[[str], None]", reason: str
) -> None:
    make(path)
    with pytest.raises(InvalidInput, match=reason):
        UnixSocket(ServerSettings(unix=path))
    assert os.path.lexists(path) and not os.path.exists(f"{path}.lock")


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file or directory"):
        UnixSocket(ServerSettings(unix=str(tmp_path / "missing" / "p.sock")))


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_refused(tmp_path: Path, path: str) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InvalidInput, match="Permission denied"):
            UnixSocket(ServerSettings(unix=path))
    finally:
        tmp_path.chmod(0o700)


def test_permission_is_refused_as_an_error_of_the_setting(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "chmod", refuse)
    with pytest.raises(InvalidInput, match=r"cannot listen on .*p\.sock: Permission denied"):
        UnixSocket(ServerSettings(unix=path))
    assert not os.path.exists(f"{path}.lock") and not os.path.exists(path)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"unix": "/tmp/" + "x" * 103}, "108 bytes; the system allows 107"),
        ({"unix": "/tmp/a\0b"}, "NUL"),
        ({"tcp": False}, "nothing to listen on"),
        ({"unix": "/tmp/p", "unix_mode": "rw"}, "octal"),
        ({"unix": "/tmp/p", "unix_mode": "0999"}, "octal"),
        ({"unix": "/tmp/p", "unix_mode": 0o600}, "must be text"),
        ({"trusted_proxies": ("Unix",)}, "trusted_proxies"),
    ],
)
def test_wrong_settings_are_refused(settings: "dict[str, object]", reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        ServerSettings(**settings)  # type: ignore[arg-type]
