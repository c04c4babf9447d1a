"""The whole process: signals, exit codes, and what its log says."""

import signal
from pathlib import Path

import httpx2
import pytest

from tests.server.running import queue_path
from tests.server.serving_process import ServingProcess
from tests.server.wire import Wire


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "penstock.toml"
    file.write_text(f'[server]\ndata = "{tmp_path / "data"}"\nport = 0\n')
    return file


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_good_order(config: Path, number: signal.Signals) -> None:
    with ServingProcess(config) as process:
        port = process.wait_for("listening")["port"]
        process.wait_for("ready")
        with Wire(port) as waiting, Wire(port) as other:
            waiting.request("PUT", queue_path("orders"))
            assert waiting.answer().status == 201
            waiting.json_request("POST", queue_path("orders", "lease"), {"wait_s": 60})
            other.request("GET", "/livez")  # sent later, so once answered, the lease waits
            assert other.answer().status == 200
            process.signal(number)
            assert waiting.answer().json == {"messages": []}
        process.wait_for("stopped")
        assert process.exit_code() == 0


def test_a_second_signal_ends_it_at_once(config: Path) -> None:
    with ServingProcess(config) as process:
        port = process.wait_for("listening")["port"]
        process.wait_for("ready")
        with Wire(port) as slow:
            slow.send(b"GET /livez HTTP/1.1\r\n")  # and no end, so the first signal waits for it
            with Wire(port) as other:
                other.request("GET", "/livez")
                assert other.answer().status == 200
            process.signal(signal.SIGTERM)
            process.wait_for("stopping")
            process.signal(signal.SIGTERM)
            assert process.exit_code() == 1


def test_sighup_reads_the_settings_again(config: Path) -> None:
    with ServingProcess(config) as process:
        port = process.wait_for("listening")["port"]
        process.wait_for("ready")
        text = config.read_text()
        config.write_text(text.replace("port = 0", "port = 1") + "max_body_bytes = 10\n")
        process.signal(signal.SIGHUP)
        reloaded = process.wait_for("reloaded")
        assert reloaded["changed"] == ["max_body_bytes"]
        assert reloaded["need_restart"] == ["port"]
        url = f"http://127.0.0.1:{port}{queue_path('orders', 'messages')}"
        assert httpx2.post(url, json={"payload": "too long"}, verify=False).status_code == 413
        config.write_text("[server]\nnonsense = 1\n")
        process.signal(signal.SIGHUP)
        assert "line 2" in process.wait_for("not reloaded")["reason"]
        process.signal(signal.SIGTERM)
        process.wait_for("stopped")
        assert process.exit_code() == 0


def test_what_is_answered_survives_kill_9(config: Path) -> None:
    with ServingProcess(config) as process:
        port = process.wait_for("listening")["port"]
        process.wait_for("ready")
        with Wire(port) as wire:
            wire.json_request("POST", queue_path("orders", "messages"), [{"payload": 1}] * 10)
            ids = [message["id"] for message in wire.answer().json["messages"]]
            wire.json_request("POST", queue_path("orders", "lease"), {"max": 4})
            receipts = [message["receipt"] for message in wire.answer().json["messages"]]
            wire.json_request("POST", "/api/v1/settle", {"ack": receipts})
            assert wire.answer().status == 200
            process.signal(signal.SIGKILL)
            assert process.exit_code() == -signal.SIGKILL
    with ServingProcess(config) as process:
        port = process.wait_for("listening")["port"]
        process.wait_for("ready")
        with Wire(port) as wire:
            wire.json_request("POST", queue_path("orders", "lease"), {"max": 100})
            assert [message["id"] for message in wire.answer().json["messages"]] == ids[4:]
