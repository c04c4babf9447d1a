"""API keys: the verbs and namespaces of a caller. A key is shown once; only its hash is stored.

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

from penstock.broker.access import Caller
from penstock.broker.limits import ClientBuckets
from penstock.broker.store import Documents, update_document
from penstock.clock import Clock, SystemClock
from penstock.errors import AlreadyExists, InvalidInput, KeyRefused, LedgerError, PenstockError
from penstock.names import check_name
from penstock.operations import Verb

log = logging.getLogger("penstock.broker")

DOCUMENT = "keys.json"
_TOKEN = re.compile(r"psk_([0-9a-f]{12})_([A-Za-z0-9_-]{20,100})", re.ASCII)
_FRESH_S = 1.0  # keys older than this are read again when one is used
_STALE_S = 2.0  # keys older than this are not accepted before they are read again
_SOON_S = 0.2  # minimum time between two reads because of wrong keys
_FAILURES, _FAILURES_PER_S = 20, 1.0  # wrong keys allowed for one address: burst and rate
_MAX_FAILING = 10_000
_MAX_KNOWN = 10_000
MAX_KEYS = 10_000
MAX_LABEL = 100
MAX_OWN_VALUE = 200
_OWN_VALUE = re.compile(rf"[!-~]{{1,{MAX_OWN_VALUE}}}", re.ASCII)


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


def make_key(
    label: str,
    verbs: Iterable[str],
    namespaces: Iterable[str] | None,
    now_ns: int,
    value: str | None = None,
) -> tuple[Key, str]:
    """Return a new key, and the token that its holder sends: `value`, if one is given."""
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
        value = f"psk_{secrets.token_hex(6)}_{secrets.token_urlsafe(32)}"
    found = _TOKEN.fullmatch(value)
    if found is not None:
        return Key(found[1], label, good_for, where, now_ns, 0, _digest(found[2])), value
    if not _OWN_VALUE.fullmatch(value):
        raise InvalidInput(f"a key has 1 to {MAX_OWN_VALUE} visible ASCII characters and no spaces")
    key = Key(secrets.token_hex(6), label, good_for, where, now_ns, 0, _digest(value), is_own=True)
    return key, value


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
        self.loaded_ns = self._clock.monotonic_ns()

    def on_document(self, name: str) -> None:
        """For `Broker.on_document_changed`: read the keys again if they changed."""
        if name == DOCUMENT:
            self._has_changed = True
            self._refresh()

    async def refresh(self) -> None:
        """Read the keys again. If they cannot be read, log the error and keep the known ones."""
        await asyncio.shield(self._refresh())

    @property
    def required(self) -> bool:
        """Return whether calls need a key: if there ever was one, revoked or not."""
        return bool(self._by_id)

    async def admit(self, token: str | None, ip: str) -> Caller:
        """Return the caller with this token. Read the keys again before refusing a token.

        Raise KeyRefused if no key matches, TooManyRequests after many wrong tokens of an address.
        """
        if self.age_s() > _FRESH_S:
            await self.refresh()
        caller = self.known(token, ip)
        if caller is None and token and self.age_s() >= _SOON_S:
            await self.load()
            caller = self.known(token, ip)
        if caller is not None:
            return caller
        if not token:
            raise KeyRefused("an API key is needed: send it as X-Api-Key or Authorization: Bearer")
        self._failures.take(ip, "wrong API keys")
        raise KeyRefused("this API key is wrong or was revoked")

    async def admit_holder(self, id: str) -> Caller:
        """Return the caller of a session that was opened with a key.

        Raise KeyRefused if the key was revoked.
        """
        if self.age_s() > _FRESH_S:
            await self.refresh()
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
            log.error("the keys could not be read again; the known ones stay valid: %s", error)
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
    ) -> tuple[Key, str]:
        """Return the key, and its token, which is not kept. `value`: the token to use."""
        key, token = make_key(label, verbs, namespaces, self._clock.now_ns(), value)

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
