"""API keys: the verbs and namespaces of a caller. A key is shown once; only its hash is stored.

A key for SQS clients has a second hash: the SHA-256 of `AWS4` and the key. HMAC-SHA256 begins with
the SHA-256 of a key that is longer than 64 bytes, so this hash verifies signatures of AWS's
Signature Version 4. A reader of it can make such signatures, but cannot use other interfaces.

The keys are a document of the store, which `penstock keys` changes while brokers run. A broker
reads it again when the store reports a change, and at least every second while keys are used,
because the embedded store does not notice writes of another process.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

from penstock.broker.access import EVERY_VERB, Admit, Caller
from penstock.broker.limits import ClientBuckets
from penstock.broker.store import Documents, update_document
from penstock.clock import Clock, SystemClock
from penstock.errors import (
    AlreadyExists,
    InvalidInput,
    KeyRefused,
    LedgerError,
    NotAllowed,
    PenstockError,
)
from penstock.names import check_name
from penstock.operations import Verb

log = logging.getLogger("penstock.broker")

DOCUMENT = "keys.json"
_TOKEN = re.compile(r"psk_([0-9a-f]{12})_([A-Za-z0-9_-]{20,100})", re.ASCII)
_FRESH_S = 1.0  # keys older than this are read again when one is used
_STALE_S = 2.0  # keys older than this are read again before one is accepted or refused
_SOON_S = 0.2  # minimum time between two reads because of wrong keys
_FAILURES, _FAILURES_PER_S = 20, 1.0  # wrong keys allowed for one address: burst and rate
_MAX_FAILING = 10_000
_MAX_KNOWN = 10_000
MAX_KEYS = 10_000
MAX_LABEL = 100
MAX_OWN_VALUE = 200
_OWN_VALUE = re.compile(rf"[!-~]{{1,{MAX_OWN_VALUE}}}", re.ASCII)


_SIGNING_PREFIX = "AWS4"
_MIN_SIGNING = 65 - len(_SIGNING_PREFIX)  # characters of a token: HMAC hashes longer keys only


class Key(NamedTuple):
    """A key without its secret."""

    id: str
    label: str
    verbs: frozenset[Verb]
    namespaces: frozenset[str] | None  # None: all
    created_at_ns: int
    revoked_at_ns: int  # 0: not revoked
    digest: str  # SHA-256 of the secret, in hex
    is_own: bool = False  # the user chose the value, which has no id in it
    signing_digest: str = ""  # SHA-256 of `AWS4` and the token; empty: it is not for signatures


class Signer(NamedTuple):
    """The holder of a key that signs its requests."""

    caller: Caller
    secret_hash: bytes  # verifies its signatures


def make_key(
    label: str,
    verbs: Iterable[str],
    namespaces: Iterable[str] | None,
    now_ns: int,
    value: str | None = None,
    *,
    signs: bool = False,
) -> tuple[Key, str]:
    """Return a new key, and the token that its holder sends: `value`, if one is given.

    With `signs`, it can be the secret access key of an SQS client.
    """
    if not isinstance(label, str) or len(label) > MAX_LABEL or not label.isprintable():
        raise InvalidInput(f"a key's label is printable text of at most {MAX_LABEL} characters")
    try:
        good_for = frozenset(Verb(verb) for verb in verbs)
    except ValueError:
        raise InvalidInput(f"verbs must be some of {', '.join(Verb)}") from None
    if not good_for:
        raise InvalidInput(f"a key needs at least one verb of {', '.join(Verb)}")
    where = None
    if namespaces is not None:
        where = frozenset(check_name("namespace", name) for name in namespaces)
        if not where:
            raise InvalidInput("a key needs at least one namespace, or all")
    if value is None:
        value = f"psk_{secrets.token_hex(6)}_{secrets.token_urlsafe(48 if signs else 32)}"
    if signs and len(value) < _MIN_SIGNING:
        raise InvalidInput(f"a key for SQS clients has at least {_MIN_SIGNING} characters")
    signing = _digest(_SIGNING_PREFIX + value) if signs else ""
    found = _TOKEN.fullmatch(value)
    if found is not None:
        digest = _digest(found[2])
        return Key(found[1], label, good_for, where, now_ns, 0, digest, False, signing), value
    if not _OWN_VALUE.fullmatch(value):
        raise InvalidInput(f"a key has 1 to {MAX_OWN_VALUE} visible ASCII characters and no spaces")
    id_, digest = secrets.token_hex(6), _digest(value)
    return Key(id_, label, good_for, where, now_ns, 0, digest, True, signing), value


def dump_keys(keys: Iterable[Key]) -> bytes:
    content = [
        {
            "id": key.id,
            "label": key.label,
            "verbs": sorted(key.verbs),
            "namespaces": None if key.namespaces is None else sorted(key.namespaces),
            "created_at_ns": key.created_at_ns,
            "revoked_at_ns": key.revoked_at_ns,
            "sha256": key.digest,
            **({"is_own": True} if key.is_own else {}),
            **({"signing_sha256": key.signing_digest} if key.signing_digest else {}),
        }
        for key in keys
    ]
    return (json.dumps({"keys": content}, indent=1) + "\n").encode()


def load_keys(data: bytes | None) -> list[Key]:
    """Return the keys. Raise LedgerError if the document is damaged, so that no key is ignored."""
    if data is None:
        return []
    try:
        return [_key(item) for item in json.loads(data)["keys"]]
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"the keys ({DOCUMENT}) cannot be read ({error!r}): repair it") from None


def _key(item: dict[str, Any]) -> Key:
    namespaces = item["namespaces"]
    return Key(
        str(item["id"]),
        str(item["label"]),
        frozenset(Verb(verb) for verb in item["verbs"]),
        None if namespaces is None else frozenset(map(str, namespaces)),
        int(item["created_at_ns"]),
        int(item["revoked_at_ns"]),
        str(item["sha256"]),
        bool(item.get("is_own", False)),
        str(item.get("signing_sha256", "")),
    )


class Keys:
    """The keys of a broker, in memory, kept up with the store's document."""

    def __init__(self, store: Documents, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._by_id: dict[str, Key] = {}
        self._own: dict[str, Key] = {}  # by digest
        self._known: dict[str, Caller] = {}  # by address; made once, not for each call
        self.loaded_ns = 0  # when the keys were read last, in monotonic time
        self._document: bytes | None = None
        self.version = 0  # counts changes of the keys
        self._loading: asyncio.Future[None] | None = None
        self._has_changed = False
        self.unreadable: str | None = None  # why the keys could not be read the last time
        self._failures = ClientBuckets(
            rate_per_s=_FAILURES_PER_S, burst=_FAILURES, most=_MAX_FAILING, clock=self._clock
        )

    async def load(self) -> None:
        """Read the keys again."""
        document = await self._store.load_document(DOCUMENT)
        if document != self._document:
            keys = load_keys(document)
            self._by_id = {key.id: key for key in keys}
            self._own = {key.digest: key for key in keys if key.is_own}
            self._document = document
            self.version += 1
        if self.unreadable is not None:
            self.unreadable = None
            log.warning("keys readable again")
        self.loaded_ns = self._clock.monotonic_ns()

    def on_document(self, name: str) -> None:
        """For `Broker.on_document_changed`: read the keys again if they changed."""
        if name == DOCUMENT:
            self._has_changed = True
            self._refresh()

    async def refresh(self) -> None:
        """Read the keys again. If they cannot be read, log the error and keep the known ones."""
        await asyncio.shield(self._refresh())

    async def refresh_if_old(self) -> None:
        """Read the keys again, unless that was done within the last second."""
        if self.age_s() > _FRESH_S:
            await self.refresh()

    @property
    def required(self) -> bool:
        """Return whether calls need a key: if there ever was one, revoked or not."""
        return bool(self._by_id)

    async def admit(self, token: str | None, ip: str) -> Caller:
        """Return the caller with this token. Read the keys again before refusing a token.

        Raise KeyRefused if no key matches, TooManyRequests after many wrong tokens of an address.
        """
        await self.refresh_if_old()
        # Not `known`: keys that were read for this call are good, however long it waited after it.
        caller = self.match(token, ip)
        if caller is None and token and self.age_s() >= _SOON_S:
            self._has_changed = True  # a read that has begun may not have the key
            await self.refresh()
            caller = self.match(token, ip)
        if caller is not None:
            return caller
        if not token:
            raise KeyRefused(
                "an API key is needed: send it as X-Api-Key or Authorization: Bearer; clients of "
                "Penstock take key=, or the environment variable PENSTOCK_KEY"
            )
        self.count_failure(ip)
        raise KeyRefused("this API key is wrong or was revoked")

    async def signer(self, id: str, ip: str) -> Signer:
        """Return the holder of a key, to verify its signature. Read the keys again before refusing.

        Raise KeyRefused if no such key signs, TooManyRequests after many failures of an address.
        """
        if self.age_s() > _FRESH_S:
            await self.refresh()
        key = self._by_id.get(id)
        if key is None and self.age_s() >= _SOON_S:
            await self.load()
            key = self._by_id.get(id)
        if key is None or key.revoked_at_ns or not key.signing_digest:
            self.count_failure(ip)
            raise KeyRefused(f"there is no key {id[:100]!r} that signs requests")
        caller = Caller(f"key:{key.id}", key.verbs, key.namespaces)
        return Signer(caller, bytes.fromhex(key.signing_digest))

    def count_failure(self, ip: str) -> None:
        """Count a wrong key or signature of an address. Raise TooManyRequests if there are many."""
        self._failures.take(ip, "wrong API keys")

    async def admit_holder(self, id: str) -> Caller:
        """Return the caller of a session that was opened with a key.

        Raise KeyRefused if the key was revoked.
        """
        await self.refresh_if_old()
        key = self._by_id.get(id)
        if key is None or key.revoked_at_ns:
            raise KeyRefused("the API key of this session was revoked: log in with another")
        return Caller(f"key:{key.id}", key.verbs, key.namespaces)

    def known(self, token: str | None, ip: str) -> Caller | None:
        """Return the caller with this token; None if it is wrong or the keys in memory are stale.

        Then call `admit`, which reads the keys again and counts wrong tokens.
        """
        age_s = self.age_s()
        if age_s > _FRESH_S:
            self._refresh()
            if age_s > _STALE_S:
                return None
        return self.match(token, ip)

    def match(self, token: str | None, ip: str) -> Caller | None:
        """Return the caller with this token, by the keys in memory, however old they are.

        For calls that waited for `refresh`. None: it is wrong.
        """
        if not self.required:
            return self._anyone(ip)
        found = _TOKEN.fullmatch(token or "")
        # Compared even if there is no such key, so that both cases take the same time.
        digest = _digest(found[2] if found else token or "")
        key = self._by_id.get(found[1]) if found else self._own.get(digest)
        is_good = hmac.compare_digest(digest, key.digest if key else _EMPTY_DIGEST)
        if key is None or not is_good or key.revoked_at_ns:
            return None
        return Caller(f"key:{key.id}", key.verbs, key.namespaces)

    def _anyone(self, ip: str) -> Caller:
        caller = self._known.get(ip)
        if caller is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            caller = self._known[ip] = Caller(f"ip:{ip}")
        return caller

    def age_s(self) -> float:
        """Return how long ago the keys were read."""
        return (self._clock.monotonic_ns() - self.loaded_ns) / 1e9

    def _refresh(self) -> "asyncio.Future[None]":
        """Read the keys again, once for all calls that find them old."""
        if self._loading is None or self._loading.done():
            self._loading = asyncio.ensure_future(self._load_quietly())
        return self._loading

    async def _load_quietly(self) -> None:
        try:
            self._has_changed = True
            while self._has_changed:  # they may change again while they are read
                self._has_changed = False
                await self.load()
        except (PenstockError, OSError) as error:
            if self.unreadable != str(error):  # not every second
                self.unreadable = str(error)
                fields = {"reason": self.unreadable}
                log.error("keys unreadable: the known ones stay valid", extra={"fields": fields})
            self.loaded_ns = self._clock.monotonic_ns()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


_EMPTY_DIGEST = _digest("")


class KeyEditor:
    """Lists, creates and revokes the keys of a store. Brokers may be running on it."""

    def __init__(self, store: Documents, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()

    async def list(self) -> "list[Key]":
        return load_keys(await self._store.load_document(DOCUMENT))

    async def create(
        self,
        label: str,
        verbs: Iterable[str],
        namespaces: Iterable[str] | None = None,
        value: str | None = None,
        *,
        signs: bool = False,
    ) -> tuple[Key, str]:
        """Return the key, and its token, which is not kept. `value`: the token to use."""
        now_ns = self._clock.now_ns()
        key, token = make_key(label, verbs, namespaces, now_ns, value, signs=signs)

        def add(old: bytes | None) -> bytes:
            keys = load_keys(old)
            if len(keys) >= MAX_KEYS:
                raise InvalidInput(f"there are {MAX_KEYS} keys, the maximum: revoke some first")
            if any(key.id == one.id or key.digest == one.digest for one in keys):
                raise AlreadyExists("this key exists already, or existed and was revoked")
            return dump_keys([*keys, key])

        await update_document(self._store, DOCUMENT, add)
        return key, token

    async def revoke(self, id: str) -> Key:
        """Revoke a key: it is refused from now on. It stays listed."""

        def revoke(old: bytes | None) -> bytes:
            keys = load_keys(old)
            if all(key.id != id for key in keys):
                raise InvalidInput(f"there is no key {id!r}; `penstock keys list` shows them")
            return dump_keys(
                key._replace(revoked_at_ns=self._clock.now_ns())
                if key.id == id and not key.revoked_at_ns
                else key
                for key in keys
            )

        keys = load_keys(await update_document(self._store, DOCUMENT, revoke))
        return next(key for key in keys if key.id == id)


class KeyCalls:
    """The calls of a broker about its keys. They need the right to manage the whole broker."""

    def __init__(self, editor: KeyEditor, admit: Admit) -> None:
        self._editor = editor
        self._admit = admit

    async def list(self, caller: Caller) -> "list[Key]":
        """Return all keys, revoked ones included. None has its secret."""
        self._admit(caller, Verb.MANAGE, None)
        return await self._editor.list()

    async def create(
        self,
        caller: Caller,
        label: str,
        verbs: Iterable[str],
        namespaces: Iterable[str] | None = None,
        *,
        signs: bool = False,
    ) -> tuple[Key, str]:
        """Create a key. Return it, and its token, which is not kept.

        Raise NotAllowed if it would allow a verb that the caller may not use itself.
        """
        self._admit(caller, Verb.MANAGE, None)
        wanted = [*verbs]
        beyond = [verb for verb in wanted if verb in EVERY_VERB - caller.verbs]
        if beyond:
            raise NotAllowed(
                f"this key may not {beyond[0]} itself, so it cannot make a key that may"
            )
        return await self._editor.create(label, wanted, namespaces, signs=signs)

    async def revoke(self, caller: Caller, id: str) -> Key:
        """Revoke a key: every broker refuses it within two seconds. It stays listed."""
        self._admit(caller, Verb.MANAGE, None)
        return await self._editor.revoke(id)
