"""queue.json: who the queue is, its settings, and how far its logs were removed.

Small, checksummed, and replaced as a whole. If it is damaged, identity comes back from the
segments' headers, and settings are the defaults.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from penstock.codec.layout import MAX_SEQ, MAX_TIMESTAMP_NS
from penstock.errors import BadEntry, NewerVersion, TooLarge
from penstock.ledger.checked_json import pack_checked, unpack_checked, whole
from penstock.ledger.folder import Folder
from penstock.ledger.segment_header import FORMAT_VERSION

MANIFEST_NAME = "queue.json"
MAX_MANIFEST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Marks:
    """Of one log: entries below `low` were removed; seqs below `next` were given out."""

    low: int = 1
    next: int = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of queue.json."""

    identity: int
    created_at_ns: int
    settings: dict[str, Any] = field(default_factory=dict)
    messages: Marks = Marks()
    events: Marks = Marks()

    def with_marks(self, log: str, marks: Marks) -> "Manifest":
        if log == "messages":
            return replace(self, messages=marks)
        return replace(self, events=marks)

    def with_settings(self, settings: dict[str, Any]) -> "Manifest":
        return replace(self, settings=settings)

    def pack(self) -> bytes:
        content = {
            "format": FORMAT_VERSION,
            "identity": self.identity,
            "created_at_ns": self.created_at_ns,
            "settings": self.settings,
            "marks": {
                "messages": {"low": self.messages.low, "next": self.messages.next},
                "events": {"low": self.events.low, "next": self.events.next},
            },
        }
        return pack_checked(content)

    @classmethod
    def unpack(cls, data: bytes) -> "Manifest":
        """BadEntry where it is damaged, NewerVersion where we must not guess."""
        content = unpack_checked(MANIFEST_NAME, data)
        try:
            if content["format"] > FORMAT_VERSION:
                raise NewerVersion(0, "queue.json was written by a newer version")
            marks = content["marks"]
            return cls(
                identity=whole(content["identity"], 0, (1 << 32) - 1),
                created_at_ns=whole(content["created_at_ns"], 0, MAX_TIMESTAMP_NS),
                settings={**content["settings"]},
                messages=_marks(**marks["messages"]),
                events=_marks(**marks["events"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadEntry(0, f"queue.json cannot be read: {error}") from None

    def save(self, folder: Folder) -> None:
        """Write it in place of the old one; InvalidInput if it would be too large to be read."""
        data = self.pack()
        if len(data) > MAX_MANIFEST_BYTES:
            raise TooLarge(
                f"the settings make {MANIFEST_NAME} {len(data)} bytes long; the most is "
                f"{MAX_MANIFEST_BYTES}"
            )
        folder.replace(MANIFEST_NAME, data)


def _marks(*, low: int, next: int) -> Marks:
    return Marks(whole(low, 1, MAX_SEQ), whole(next, 1, MAX_SEQ))
