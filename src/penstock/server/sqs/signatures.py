"""AWS's Signature Version 4: read it, and verify it with what is stored of a key.

A client proves that it knows the secret by an HMAC over its request. The key of the first HMAC is
`AWS4` and the secret, which here is the API key itself. HMAC-SHA256 begins with the SHA-256 of a
key that is longer than 64 bytes, so that hash is all that a server needs; see `broker.keys`.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

from penstock.server.sqs.errors import SqsError

ALGORITHM = "AWS4-HMAC-SHA256"
MAX_SKEW_S = 300
_SERVICE = "sqs"
_PARTS = re.compile(r"\s*(Credential|SignedHeaders|Signature)=([^,\s]+)\s*", re.ASCII)
_SPACES = re.compile(r" +")
_UNRESERVED = "-_.~"
_WHEN = "%Y%m%dT%H%M%SZ"


class Signature(NamedTuple):
    """What a request says about its signature."""

    key_id: str
    date: str  # of the scope: YYYYMMDD
    region: str
    signed_headers: tuple[str, ...]
    signature: str
    when: str

    @property
    def scope(self) -> str:
        return f"{self.date}/{self.region}/{_SERVICE}/aws4_request"


class Signed(NamedTuple):
    """The parts of a request that are signed."""

    method: str
    path: str  # as it was sent
    query: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


def is_signed(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"authorization", b"").startswith(ALGORITHM.encode())


def read_signature(headers: Mapping[bytes, bytes]) -> Signature:
    """Read the signature of a request. Raise IncompleteSignature if a part is missing."""
    text = headers[b"authorization"].decode("latin-1").removeprefix(ALGORITHM)
    parts: dict[str, str] = {}
    for one in text.split(","):
        found = _PARTS.fullmatch(one)
        if found is not None:
            parts[found[1]] = found[2]
    for name in ("Credential", "SignedHeaders", "Signature"):
        if name not in parts:
            raise _incomplete(f"Authorization header requires '{name}' parameter.")
    credential = parts["Credential"].split("/")
    if len(credential) != 5 or credential[3:] != [_SERVICE, "aws4_request"]:
        raise _incomplete(
            f"Credential must be KEY/YYYYMMDD/REGION/{_SERVICE}/aws4_request: "
            f"{parts['Credential']!r}."
        )
    when = headers.get(b"x-amz-date", b"").decode("latin-1")
    if not when:
        raise _incomplete("Authorization header requires existence of an 'X-Amz-Date' header.")
    key_id, date, region = credential[:3]
    signed = tuple(parts["SignedHeaders"].split(";"))
    return Signature(key_id, date, region, signed, parts["Signature"], when)


def region_of(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the region in the scope of a signature, verified or not; None without one."""
    found = re.search(rb"Credential=[^/,]+/[0-9]{8}/([a-z0-9-]{1,40})/", _authorization(headers))
    return None if found is None else found[1].decode()


def _authorization(headers: Mapping[bytes, bytes]) -> bytes:
    return headers.get(b"authorization", b"")


def check_time(signature: Signature, now_s: float) -> None:
    """Raise SignatureDoesNotMatch if the clock of the client is too far from this one."""
    try:
        when_s = datetime.strptime(signature.when, _WHEN).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise _incomplete(
            f"Date must be in ISO-8601 'basic format'. Got {signature.when!r}."
        ) from None
    if signature.when[:8] != signature.date:
        raise _mismatch(
            f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date "
            f"from HTTP: {signature.date!r} != {signature.when[:8]!r}."
        )
    now = datetime.fromtimestamp(now_s, UTC).strftime(_WHEN)
    if when_s < now_s - MAX_SKEW_S:
        raise _mismatch(
            f"Signature expired: {signature.when} is now earlier than {now} - 5 min. "
            f"Set the clock of the client."
        )
    if when_s > now_s + MAX_SKEW_S:
        raise _mismatch(
            f"Signature not yet current: {signature.when} is still later than {now} + 5 min. "
            f"Set the clock of the client."
        )


def verify(signature: Signature, signed: Signed, secret_hash: bytes) -> bool:
    """Return whether a request was signed by the holder of the key.

    Raise an error if the signature leaves out a header that decides what the request does.
    """
    needed = {"host"} | {
        name.decode("latin-1") for name, _ in signed.headers if name.startswith(b"x-amz-")
    }
    left_out = sorted(needed - set(signature.signed_headers))
    if left_out:
        raise _mismatch(f"'{left_out[0]}' must be a 'SignedHeader' in the AWS Authorization.")
    canonical = canonical_request(signature.signed_headers, signed)
    text = "\n".join(
        [ALGORITHM, signature.when, signature.scope, hashlib.sha256(canonical).hexdigest()]
    )
    key = secret_hash
    for part in (signature.date, signature.region, _SERVICE, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    expected = hmac.digest(key, text.encode(), "sha256").hex()
    return hmac.compare_digest(expected, signature.signature)


def canonical_request(signed_headers: Sequence[str], signed: Signed) -> bytes:
    """Return the text that a client has hashed and signed."""
    values: dict[str, list[str]] = {}
    for name, value in signed.headers:
        text = _SPACES.sub(" ", value.decode("latin-1").strip())
        values.setdefault(name.decode("latin-1").lower(), []).append(text)
    pairs = parse_qsl(signed.query, keep_blank_values=True)
    query = "&".join(sorted(f"{_quoted(name)}={_quoted(value)}" for name, value in pairs))
    lines = [
        signed.method,
        quote(signed.path or "/", safe=f"/{_UNRESERVED}"),
        query,
        *(f"{name}:{','.join(values.get(name, []))}" for name in signed_headers),
        "",
        ";".join(signed_headers),
        hashlib.sha256(signed.body).hexdigest(),
    ]
    return "\n".join(lines).encode("latin-1", "replace")


def _quoted(text: str) -> str:
    return quote(text, safe=_UNRESERVED)


def _incomplete(message: str) -> SqsError:
    return SqsError("IncompleteSignatureException", message, 403)


def _mismatch(message: str) -> SqsError:
    return SqsError("SignatureDoesNotMatch", message, 403)


def wrong_signature() -> SqsError:
    """Return the error for a signature by another secret, or of another request."""
    return _mismatch(
        "The request signature we calculated does not match the signature you provided. Check your "
        "AWS Secret Access Key and signing method."
    )
