"""closed.json: what there was when the queue was last closed, and where each log ended.

Closing writes it when everything else is on disk. From then on a log never gets shorter: writers
add to it, and recovery cuts off only what came later. So what the file names and is not there was
lost, and nothing before that end can be an unfinished write. A log that goes further is sound:
it was written to since, and perhaps killed. The same holds for transactions.json.

Opening removes the file only if a log lacks something of it, after that was reported and the lost
seqs are on record.
"""

from dataclasses import asdict, dataclass

from penstock.codec.layout import MAX_SEQ
from penstock.errors import BadEntry, NewerVersion
from penstock.ledger.checked_json import pack_checked, unpack_checked, whole
from penstock.ledger.log import Log
from penstock.ledger.segment_header import FORMAT_VERSION

CLOSED_NAME = "closed.json"
MAX_CLOSED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where one log ended."""

    last: int = 0  # base seq of its last segment; 0: it had none
    bytes: int = 0  # how far that one had entries
    next: int = 1  # the next seq

    @classmethod
    def of(cls, log: Log) -> "LogEnd":
        """The end of a log that was closed."""
        last = log.segments.last
        if last is None:
            return cls(next=log.next_seq)
        return cls(last.base_seq, last.end, log.next_seq)


@dataclass(frozen=True, slots=True)
class Closed:
    """The content of closed.json."""

    identity: int
    messages: LogEnd
    events: LogEnd
    transactions: bool = False  # there was a transactions.json

    def pack(self) -> bytes:
        content = {"format": FORMAT_VERSION, **asdict(self)}
        if not self.transactions:
            del content["transactions"]
        return pack_checked(content)

    @classmethod
    def unpack(cls, data: bytes) -> "Closed":
        """BadEntry where it is damaged, NewerVersion where we must not guess."""
        content = unpack_checked(CLOSED_NAME, data)
        try:
            if content["format"] > FORMAT_VERSION:
                raise NewerVersion(0, f"{CLOSED_NAME} was written by a newer version")
            return cls(
                whole(content["identity"], 0, (1 << 32) - 1),
                _log_end(**content["messages"]),
                _log_end(**content["events"]),
                content.get("transactions") is True,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise BadEntry(0, f"{CLOSED_NAME} cannot be read: {error}") from None


def _log_end(*, last: int, bytes: int, next: int) -> LogEnd:
    return LogEnd(whole(last, 0, MAX_SEQ), whole(bytes, 0, MAX_SEQ), whole(next, 1, MAX_SEQ))
