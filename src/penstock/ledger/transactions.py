"""Which transactions are in a queue: `transactions.json`.

For each application the version that was taken in last; and what is about to be, so that after a
crash it can be found out whether it was.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.errors import BadEntry, LedgerError, NewerVersion
from penstock.ledger.checked_json import pack_checked, unpack_checked
from penstock.ledger.folder import Folder
from penstock.ledger.system_errors import as_ledger_error

TRANSACTIONS_NAME = "transactions.json"
TRANSACTION_TAG = 240  # attribute of the first message of a transaction that was appended
MAX_REMEMBERED = 10_000  # applications; the one that was longest silent is forgotten first
MAX_TRANSACTIONS_BYTES = 8 << 20
_FORMAT = 1


class Transaction(NamedTuple):
    """The name of one adoption: versions of an application rise."""

    app: str
    version: int


def tag_value(transaction: Transaction) -> bytes:
    """What the attribute of an appended transaction says."""
    return f"{transaction.version}:{transaction.app}".encode()


@dataclass(frozen=True, slots=True)
class Memory:
    """The content of transactions.json."""

    done: dict[str, tuple[int, int, int]]  # application -> version, first seq, entries
    pending: dict[str, Any] | None = None

    @classmethod
    def unpack(cls, data: bytes) -> "Memory":
        """BadEntry where it is damaged, NewerVersion where we must not guess."""
        content = unpack_checked(TRANSACTIONS_NAME, data)
        try:
            if content["format"] > _FORMAT:
                raise NewerVersion(0, f"{TRANSACTIONS_NAME} was written by a newer version")
            done = {app: (v, seq, n) for app, (v, seq, n) in content["done"].items()}
            return cls(done, content["pending"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadEntry(0, f"{TRANSACTIONS_NAME} cannot be read: {error}") from None

    @classmethod
    def load(cls, root: Folder) -> "Memory":
        """Return what the queue in a directory remembers; LedgerError if it cannot be said."""
        try:
            return cls.unpack(root.read(TRANSACTIONS_NAME, max_bytes=MAX_TRANSACTIONS_BYTES))
        except FileNotFoundError:
            return cls({})
        except OSError as error:
            raise as_ledger_error(root.path, f"reading {TRANSACTIONS_NAME}", error) from error
        except (BadEntry, ValueError) as error:
            raise LedgerError(
                f"{root.path}/{TRANSACTIONS_NAME} cannot be read ({error}), so it cannot be said "
                f"which transactions are in the queue. Make sure that none will be repeated, then "
                f"remove the file."
            ) from None

    def save(self, root: Folder) -> None:
        done = dict(list(self.done.items())[-MAX_REMEMBERED:])
        data = pack_checked({"format": _FORMAT, "done": done, "pending": self.pending})
        try:
            root.replace(TRANSACTIONS_NAME, data)
        except OSError as error:
            raise as_ledger_error(root.path, f"saving {TRANSACTIONS_NAME}", error) from error

    def with_done(self, transaction: Transaction, first_seq: int, entries: int) -> "Memory":
        others = {app: entry for app, entry in self.done.items() if app != transaction.app}
        entry = (transaction.version, first_seq, entries)
        return Memory({**others, transaction.app: entry}, None)
