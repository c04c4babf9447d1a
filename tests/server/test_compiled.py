"""Compiled modules of the server, and the same ones as plain Python."""

import os
import random
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.compiled import import_compiled_or_source
from penstock.errors import InvalidInput
from penstock.server import COMPILED, connection, strict_json

HERE = Path(__file__).parent
is_compiled = not str(connection.__file__).endswith(".py")
needs_compiled = pytest.mark.skipif(not is_compiled, reason="there was no compiler")
SAY = f"import penstock.server.{', penstock.server.'.join(COMPILED)}\n" + "".join(
    f"print(penstock.server.{name}.__file__)\n" for name in COMPILED
)


def run(choice: str, code: str = SAY) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PENSTOCK_HTTP": choice}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_source_can_be_asked_for() -> None:
    done = run("python")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(line.endswith(".py") for line in done.stdout.splitlines())


@needs_compiled
def test_compiled_modules_are_used_where_they_are() -> None:
    done = run("compiled")
    assert (done.returncode, done.stderr) == (0, "")
    assert not any(line.endswith(".py") for line in done.stdout.splitlines())


def test_an_unknown_choice_is_an_error() -> None:
    assert "PENSTOCK_HTTP is 'rust'; it may be 'python' or 'compiled'" in run("rust").stderr


@needs_compiled
@pytest.mark.timeout(480)
def test_the_plain_server_answers_as_the_compiled_one() -> None:
    """The tests of connections and requests, again."""
    files = ("bad_requests", "gone_clients", "native_table", "pipelining", "turns", "upgrades")
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(str(HERE / f"test_{name}.py") for name in files)],
        env={**os.environ, "PENSTOCK_HTTP": "python"},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


# -- the quick check of JSON -----------------------------------------------------------------------

_PARTS = ["{", "}", "[", "]", ":", ",", '"', " ", "e", "E5", "-", ".", "1", "0", "\\", "é", "\x01"]
_PARTS += ['"a"', '"a":1', '"\\u0061"', '"\\ud800"', "1e999", "9" * 19, "9" * 400, "true", "null"]


def _json(draw: random.Random, depth: int = 0) -> str:
    kind = draw.random()
    if depth == 4 or kind < 0.4:
        return draw.choice(["1", "-1.5", '"x"', "true", "null", "1e5", '""', '"a:b"', "[]", "{}"])
    inner = [_json(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    if kind < 0.7:
        return "{" + ",".join(f'"{draw.choice("abc")}":{one}' for one in inner) + "}"
    return "[" + ",".join(inner) + "]"


@pytest.mark.skipif(strict_json.is_surely_strict is None, reason="there was no compiler")
@given(draw=st.randoms(use_true_random=False), part=st.sampled_from(_PARTS))
def test_the_quick_check_accepts_nothing_that_the_full_one_refuses(
    draw: random.Random, part: str
) -> None:
    text = _json(draw)
    at = draw.randint(0, len(text))
    for body in (text.encode(), (text[:at] + part + text[at + draw.randint(0, 1) :]).encode()):
        assert strict_json.is_surely_strict is not None
        if strict_json.is_surely_strict(body):
            strict_json.check(body)


NOT_JSON = (
    *(b"", b" ", b"-", b"01", b"1.", b".5", b"+1", b"1 2", b"tru", b"nul", b"falsy", b"truex"),
    *(b"[", b"]", b"[1", b"[1,]", b"[,1]", b"[1 2]", b"[}", b"{]", b"{", b"}", b'{"a"}', b'{"a":}'),
    *(
        b'{"a":1,}',
        b'{,"a":1}',
        b'{"a" 1}',
        b'{"a":1 "b":2}',
        b"{1:2}",
        b'"a',
        b'"a\n"',
        b'["a":1]',
    ),
    *(b":", b",", b'"a":1', b"1,", b"[]]", b"NaN", b"Infinity", b"1\0", b"\v1"),
)


@pytest.mark.parametrize(
    ("body", "sure"),
    [
        (b'{"payload": {"a": [1, 2.5, -3], "b": {"a": true}}}', True),
        (b"[" * 32 + b"]" * 32, True),
        (b"[" * 33 + b"]" * 33, False),
        (b'{"a": 1, "a": 1}', False),
        (b'{"a": 1, "\\u0061": 1}', False),
        (b'{"a": 1e5}', False),
        (b"1" * 19, False),
        (b" -0.5 ", True),
        (b'[true, false, null, "", {}, []]', True),
        *((body, False) for body in NOT_JSON),
        ('"ü"'.encode(), False),
        (b"{" + b",".join(b'"%d":0' % n for n in range(65)) + b"}", False),
    ],
)
def test_the_quick_check_is_sure_of_plain_bodies_only(body: bytes, sure: bool) -> None:
    if strict_json.is_surely_strict is not None:
        assert strict_json.is_surely_strict(body) is sure
    if sure:
        strict_json.check(body)
    assert strict_json.is_strict(b'{"a": 1, "a": 1}') is False
    with pytest.raises(InvalidInput):
        strict_json.check_decoded(b'{"a": 1, "a": 1}')


def test_compiled_modules_older_than_their_sources_are_not_used_and_this_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delenv("PENSTOCK_HTTP", raising=False)
    (tmp_path / "one.py").write_text("")
    compiled = tmp_path / f"one{EXTENSION_SUFFIXES[0]}"
    compiled.write_bytes(b"")
    import_compiled_or_source("package", tmp_path, "one")
    assert caplog.messages == []
    os.utime(compiled, (0, 0))
    import_compiled_or_source("package", tmp_path, "one")
    (text,) = caplog.messages
    assert "of package are not used: they were edited after they were compiled" in text
    spec = sys.meta_path[0].find_spec("package.one", None)
    assert spec is not None
    assert spec.origin == str(tmp_path / "one.py")
