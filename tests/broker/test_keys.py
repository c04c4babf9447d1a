"""API keys: shown once, kept as hashes, scoped, revoked while a broker runs."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from penstock.broker import EmbeddedStore, KeyEditor, Keys, Verb
from penstock.broker.keys import dump_keys, make_key
from penstock.broker.stores import KeyAdmin
from penstock.errors import (
    AlreadyExists,
    InvalidInput,
    KeyRefused,
    LedgerError,
    NotAllowed,
    TooManyRequests,
)
from penstock.server.stream_keys import StreamKeys
from tests.broker.conftest import OpenBroker
from tests.harness.virtual_loop import LoopClock

ON_DISK = True


def editor(path: Path) -> KeyEditor:
    """The keys of a directory, as another process changes them."""
    return KeyEditor(EmbeddedStore(str(path)))


async def test_without_keys_everyone_is_let_in(open_broker: OpenBroker, clock: LoopClock) -> None:
    async with open_broker() as broker:
        keys = Keys(broker.store, clock)
        await keys.load()
        assert not keys.required
        assert (await keys.admit(None, "1.2.3.4")).client == "ip:1.2.3.4"


async def test_a_key_is_good_for_its_verbs_and_namespaces(
    open_broker: OpenBroker, clock: LoopClock, tmp_path: Path
) -> None:
    key, token = await editor(tmp_path / "data").create("web", ["publish"], ["shop"])
    async with open_broker() as broker:
        keys = Keys(broker.store, clock)
        await keys.load()
        caller = await keys.admit(token, "1.2.3.4")
        assert caller.client == f"key:{key.id}"
        caller.check(Verb.PUBLISH, "shop")
        for verb, namespace in ((Verb.READ, "shop"), (Verb.PUBLISH, "bank"), (Verb.PUBLISH, None)):
            with pytest.raises(NotAllowed):
                caller.check(verb, namespace)


async def test_wrong_keys_are_refused_alike(
    open_broker: OpenBroker, clock: LoopClock, tmp_path: Path
) -> None:
    _, token = await editor(tmp_path / "data").create("web", ["publish"])
    async with open_broker() as broker:
        keys = Keys(broker.store, clock)
        await keys.load()
        wrong = [token[:-1], token + "x", token.upper(), "psk_" + "0" * 12 + "_" + "x" * 43, "x"]
        for bad in (*wrong, "é" * 20, "\0"):
            with pytest.raises(KeyRefused, match="wrong or was revoked"):
                await keys.admit(bad, "1.2.3.4")
            assert keys.known(bad, "1.2.3.4") is None
        with pytest.raises(KeyRefused, match="needed"):
            await keys.admit(None, "1.2.3.4")


async def test_a_running_broker_sees_new_and_revoked_keys(
    open_broker: OpenBroker, clock: LoopClock, tmp_path: Path
) -> None:
    file = editor(tmp_path / "data")
    await file.create("first", ["read"])
    async with open_broker() as broker:
        keys = Keys(broker.store, clock)
        await keys.load()
        clock.passed_ns += 10**9
        key, token = await file.create("second", ["read"])
        assert (await keys.admit(token, "1.2.3.4")).client == f"key:{key.id}"
        await file.revoke(key.id)
        clock.passed_ns += 2 * 10**9
        with pytest.raises(KeyRefused):
            await keys.admit(token, "1.2.3.4")


async def test_the_first_key_shuts_the_door_to_the_first_call_that_comes_after_a_while(
    open_broker: OpenBroker, clock: LoopClock, tmp_path: Path
) -> None:
    async with open_broker() as broker:
        keys = Keys(broker.store, clock)
        await keys.load()
        assert keys.known(None, "1.2.3.4") is not None
        await editor(tmp_path / "data").create("first", ["read"])
        clock.passed_ns += 60 * 10**9
        assert keys.known(None, "1.2.3.4") is None  # not before they are read again
        with pytest.raises(KeyRefused, match="needed"):
            await keys.admit(None, "1.2.3.4")


class _HeldLoop:
    """A store whose keys are read at once; then another task holds the event loop for long."""

    def __init__(self, document: bytes | None, clock: LoopClock) -> None:
        self.document = document
        self._clock = clock

    def load_document(self, name: str) -> "asyncio.Future[bytes | None]":
        loop = asyncio.get_running_loop()
        loop.call_soon(self._hold)  # before the reader goes on
        found: asyncio.Future[bytes | None] = loop.create_future()
        found.set_result(self.document)
        return found

    def replace_document(
        self, name: str, old: bytes | None, new: bytes | None
    ) -> "asyncio.Future[bool]":
        raise AssertionError("keys are only read")

    def _hold(self) -> None:
        self._clock.passed_ns += 60 * 10**9


async def test_no_call_is_refused_because_the_keys_grew_old_while_it_waited(
    clock: LoopClock,
) -> None:
    key, token = make_key("web", ["publish"], None, 0)
    keys = Keys(_HeldLoop(None, clock), clock)
    await keys.load()
    clock.passed_ns += 60 * 10**9
    assert (await keys.admit(None, "1.2.3.4")).client == "ip:1.2.3.4"
    keys = Keys(_HeldLoop(dump_keys([key]), clock), clock)
    await keys.load()
    for _ in range(25):  # nor counted as a wrong key
        assert (await keys.admit(token, "1.2.3.4")).client == f"key:{key.id}"
    with pytest.raises(KeyRefused, match="needed"):
        await keys.admit(None, "1.2.3.4")
    with pytest.raises(KeyRefused, match="wrong"):
        await keys.admit("wrong", "1.2.3.4")


async def test_keys_that_are_old_by_then_are_read_again_for_the_next_call(
    clock: LoopClock,
) -> None:
    key, token = make_key("web", ["publish"], None, 0)
    store = _HeldLoop(dump_keys([key]), clock)
    keys = Keys(store, clock)
    await keys.load()
    clock.passed_ns += 60 * 10**9
    await keys.admit(token, "1.2.3.4")
    store.document = dump_keys([key._replace(revoked_at_ns=1)])
    with pytest.raises(KeyRefused):
        await keys.admit(token, "1.2.3.4")


async def test_streams_of_good_keys_stay_open_if_the_loop_is_held(clock: LoopClock) -> None:
    (good, token), (bad, revoked) = (make_key(name, ["consume"], None, 0) for name in "ab")
    store = _HeldLoop(dump_keys([good, bad]), clock)
    keys = Keys(store, clock)
    await keys.load()
    streams = StreamKeys(keys)
    watched = [
        streams.watch(one, "1.2.3.4", await keys.admit(one, "1.2.3.4")) for one in (token, revoked)
    ]
    store.document = dump_keys([good, bad._replace(revoked_at_ns=1)])
    await watched[1].wait()
    assert not watched[0].is_set()
    streams.stop()


async def test_who_guesses_is_slowed_down_and_others_are_not(
    open_broker: OpenBroker, clock: LoopClock, tmp_path: Path
) -> None:
    _, token = await editor(tmp_path / "data").create("web", ["read"])
    async with open_broker() as broker:
        keys = Keys(broker.store, clock)
        await keys.load()
        for _ in range(20):
            with pytest.raises(KeyRefused):
                await keys.admit("psk_guess", "6.6.6.6")
        with pytest.raises(TooManyRequests):
            await keys.admit("psk_guess", "6.6.6.6")
        await keys.admit(token, "6.6.6.6")
        with pytest.raises(KeyRefused):
            await keys.admit("psk_guess", "7.7.7.7")


def test_the_secret_is_nowhere_on_disk(tmp_path: Path) -> None:
    _, token = KeyAdmin(str(tmp_path / "data")).create("web", ["read"])
    secret = token.split("_", 2)[2]
    for file in (tmp_path / "data").rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes()
    document = tmp_path / "data" / "_broker" / "keys.json"
    assert document.stat().st_mode & 0o777 == 0o600


def test_bad_scopes_make_no_key(tmp_path: Path) -> None:
    file = KeyAdmin(str(tmp_path / "data"))
    for label, verbs, namespaces in (
        ("x", ["fly"], None),
        ("x", [], None),
        ("x", ["read"], []),
        ("x", ["read"], ["-bad"]),
        ("x" * 101, ["read"], None),
        ("line\nbreak", ["read"], None),
    ):
        with pytest.raises(InvalidInput):
            file.create(label, verbs, namespaces)
    with pytest.raises(InvalidInput, match="no key"):
        file.revoke("0123")
    assert file.list() == []


async def test_a_damaged_key_file_opens_no_door(
    open_broker: OpenBroker, clock: LoopClock, tmp_path: Path
) -> None:
    await editor(tmp_path / "data").create("web", ["read"])
    (tmp_path / "data" / "_broker" / "keys.json").write_text('{"keys": [{}]}')
    async with open_broker() as broker:
        with pytest.raises(LedgerError, match="keys"):
            await Keys(broker.store, clock).load()


async def test_a_key_that_somebody_chose_is_as_good_as_a_new_one(
    open_broker: OpenBroker, clock: LoopClock, tmp_path: Path
) -> None:
    file = editor(tmp_path / "data")
    key, token = await file.create("old", ["publish"], ["shop"], "my-secret-api-key")
    assert token == "my-secret-api-key"
    assert b"my-secret" not in (tmp_path / "data" / "_broker" / "keys.json").read_bytes()
    async with open_broker() as broker:
        keys = Keys(broker.store, clock)
        await keys.load()
        caller = await keys.admit(token, "1.2.3.4")
        assert caller.client == f"key:{key.id}"
        caller.check(Verb.PUBLISH, "shop")
        for bad in ("my-secret-api-ke", "my-secret-api-keyy", "MY-SECRET-API-KEY", key.digest):
            assert keys.known(bad, "1.2.3.4") is None
        await file.revoke(key.id)
        await keys.load()
        with pytest.raises(KeyRefused):
            await keys.admit(token, "1.2.3.4")


async def test_a_key_of_another_broker_can_be_taken_over(
    open_broker: OpenBroker, clock: LoopClock, tmp_path: Path
) -> None:
    key, token = await editor(tmp_path / "other").create("web", ["publish"])
    taken, same = await editor(tmp_path / "data").create("web", ["publish"], None, token)
    assert (taken.id, taken.digest, same) == (key.id, key.digest, token)
    async with open_broker() as broker:
        keys = Keys(broker.store, clock)
        await keys.load()
        assert (await keys.admit(token, "1.2.3.4")).client == f"key:{key.id}"


@pytest.mark.parametrize("value", ["", " ", "a b", "é", "a\n", "x" * 201])
def test_a_key_that_no_header_can_hold_is_refused(tmp_path: Path, value: str) -> None:
    file = KeyAdmin(str(tmp_path / "data"))
    with pytest.raises(InvalidInput, match="visible ASCII"):
        file.create("", ["read"], None, value)
    assert file.list() == []


def test_a_key_is_there_once(tmp_path: Path) -> None:
    file = KeyAdmin(str(tmp_path / "data"))
    key, _ = file.create("", ["read"], None, "secret")
    file.revoke(key.id)
    with pytest.raises(AlreadyExists):
        file.create("", ["read"], None, "secret")


async def test_a_key_file_of_version_0_1_is_read_and_kept(
    open_broker: OpenBroker, clock: LoopClock, tmp_path: Path
) -> None:
    digest = hashlib.sha256(b"x" * 43).hexdigest()
    document = tmp_path / "data" / "_broker" / "keys.json"
    document.parent.mkdir(parents=True)
    document.write_text(
        '{"keys": [{"id": "0123456789ab", "label": "old", "verbs": ["read"], "namespaces": null, '
        f'"created_at_ns": 1, "revoked_at_ns": 0, "sha256": "{digest}"}}]}}'
    )
    async with open_broker() as broker:
        await KeyEditor(broker.store, clock).create("new", ["publish"])
        keys = Keys(broker.store, clock)
        await keys.load()
        caller = await keys.admit("psk_0123456789ab_" + "x" * 43, "1.2.3.4")
        assert (caller.client, caller.verbs) == ("key:0123456789ab", frozenset([Verb.READ]))
        assert [key.label for key in await KeyEditor(broker.store).list()] == ["old", "new"]


async def test_keys_that_cannot_be_read_stay_valid_and_the_log_says_so_once(
    open_broker: OpenBroker, clock: LoopClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, token = await editor(tmp_path / "data").create("web", ["publish"])
    [path] = (tmp_path / "data").rglob("keys.json")
    whole = path.read_bytes()
    async with open_broker() as broker:
        keys = Keys(broker.store, clock)
        await keys.load()
        path.write_bytes(b"{")
        for _ in range(3):
            await asyncio.sleep(5)
            await keys.admit(token, "1.2.3.4")
            with pytest.raises(KeyRefused):
                await keys.admit("wrong" * 10, "1.2.3.4")
        assert "keys.json" in str(keys.unreadable)
        assert [one.message for one in caplog.records] == [
            "keys unreadable: the known ones stay valid"
        ]
        path.write_bytes(whole)
        await asyncio.sleep(5)
        await keys.admit(token, "1.2.3.4")
        assert keys.unreadable is None
        assert caplog.records[-1].message == "keys readable again"
