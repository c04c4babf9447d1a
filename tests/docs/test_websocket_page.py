"""The WebSocket page matches the code, and its example runs."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from penstock.broker.consumers import MOST_CREDIT
from penstock.server.ws import native, protocol, stream
from tests.docs.pages import DOCS, rows_with, unquoted
from tests.server.running import RunningServer, queue_path

PAGE = (DOCS / "websocket.md").read_text()


def test_parameters_match_the_code() -> None:
    named = {unquoted(row["parameter"]) for row in rows_with("websocket.md", "parameter", "means")}
    assert named == native.PARAMETERS
    assert f"0 to {MOST_CREDIT} | {native.USUAL_CREDIT} |" in PAGE
    assert f"| {stream.MAX_UNANSWERED} |" in PAGE


def test_every_close_code_is_listed() -> None:
    codes = {int(row["close code"]) for row in rows_with("websocket.md", "close code", "means")}
    ours = {stream.INTERNAL, protocol.RESTARTING, stream.NOT_FOUND}
    assert ours < codes


def test_frames_on_the_page_parse_and_are_complete() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    kinds = {type(native.CLIENT_FRAMES.decode(line)) for line in shown.splitlines()}
    assert kinds == {native.Ack, native.Nack, native.Extend, native.Credit}


def test_consumer_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    with RunningServer(tmp_path / "data") as server, server.client() as http:
        http.post(queue_path("orders", "messages"), json={"payload": {"order": 17}})
        printed = StringIO()
        with redirect_stdout(printed):
            exec(example.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}"), {})
    assert printed.getvalue() == "{'order': 17}\ndone\n"
