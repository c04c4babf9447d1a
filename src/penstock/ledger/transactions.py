"""Which transactions are in a queue: `transactions.json`.

For each application the version that was taken in last; and what is about to be, so that after a
crash it can be found out whether it was.
"""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.codec import crc32c
from penstock.errors import LedgerError
from penstock.ledger.folder import Folder
from penstock.ledger.ledger import Ledger
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
    def load(cls, ledger: Ledger) -> "Memory":
        root = Folder(ledger.messages.folder.files, ledger.path)
        try:
            data = root.read(TRANSACTIONS_NAME, max_bytes=MAX_TRANSACTIONS_BYTES)
        except FileNotFoundError:
            return cls({})
        except OSError as error:
            raise as_ledger_error(ledger.path, f"reading {TRANSACTIONS_NAME}", error) from error
        try:
            content = json.loads(data)
            checksum = content.pop("crc")
            if checksum != crc32c(_canonical(content)) or content["format"] > _FORMAT:
                raise ValueError("the checksum does not match, or a newer version wrote it")
            done = {app: (v, seq, n) for app, (v, seq, n) in content["done"].items()}
            return cls(done, content["pending"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LedgerError(
                f"{ledger.path}/{TRANSACTIONS_NAME} cannot be read ({error}), so it cannot be said "
                f"which transactions are in the queue. Make sure that none will be repeated, then "
                f"remove the file."
            ) from None

    def save(self, ledger: Ledger) -> None:
        done = dict(list(self.done.items())[-MAX_REMEMBERED:])
        content = {"format": _FORMAT, "done": done, "pending": self.pending}
        data = json.dumps({**content, "crc": crc32c(_canonical(content))}).encode()
        try:
            Folder(ledger.messages.folder.files, ledger.path).replace(TRANSACTIONS_NAME, data)
        except OSError as error:
            raise as_ledger_error(ledger.path, f"saving {TRANSACTIONS_NAME}", error) from error

    def with_done(self, transaction: Transaction, first_seq: int, entries: int) -> "Memory":
        others = {app: entry for app, entry in self.done.items() if app != transaction.app}
        entry = (transaction.version, first_seq, entries)
        return Memory({**others, transaction.app: entry}, None)


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
