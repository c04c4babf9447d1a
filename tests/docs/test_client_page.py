"""The client page: its examples run against a real broker, its tables match the code."""

import re
from contextlib import redirect_stdout
from dataclasses import fields
from io import StringIO
from pathlib import Path

import pytest

from penstock.client import Batching, ClientOptions, RemoteBroker
from tests.docs.pages import DOCS, rows_with, unquoted
from tests.server.running import RunningServer

PAGE = "client.md"
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_examples_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_KEY", raising=False)
    blocks = _FENCED.findall((DOCS / PAGE).read_text())
    assert len(blocks) >= 8
    with RunningServer(tmp_path / "data") as server:
        names: dict[str, object] = {"broker": server.url}
        printed = ""
        for language, body in blocks:
            if language == "text":
                assert printed == body
                continue
            out = StringIO()
            with redirect_stdout(out):
                exec(compile(body, PAGE, "exec"), names)
            printed = out.getvalue()


def test_every_option_is_listed_with_its_default() -> None:
    listed = [
        (unquoted(row["option"]), unquoted(row["default"]))
        for row in rows_with(PAGE, "option", "default")
    ]
    known = [
        (field.name, "1 MiB" if field.name == "max_bytes" else repr(field.default))
        for kind in (ClientOptions, Batching)
        for field in fields(kind)
    ]
    assert listed == known


def test_every_method_of_a_broker_is_listed() -> None:
    listed = [
        name
        for row in rows_with(PAGE, "method", "does")
        for name in unquoted(row["method"]).split(", ")
    ]
    methods = {
        name
        for name in dir(RemoteBroker)
        if not name.startswith("_") and callable(getattr(RemoteBroker, name))
    }
    assert sorted(listed) == sorted(methods - {"close", "run"})
