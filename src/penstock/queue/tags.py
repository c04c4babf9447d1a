"""The attribute tags of messages. Part of the format: add, never rename or reuse."""

from penstock.codec.layout import CONTENT_TYPE_TAG
from penstock.ledger.json_files import TRANSACTION_TAG

DEDUP = 1  # SHA-256 of the dedup id, and the end of its window (dedup.py)
MAX_ATTEMPTS = 2  # u32
CONTENT_TYPE = CONTENT_TYPE_TAG  # UTF-8
SETTLES = 4  # an event that is one with this batch of messages (settlement.py)
TRACE = 5  # W3C trace context, UTF-8
DUPLICATES = 6  # u32: how many duplicates were in the batch that begins with this message
TRANSACTION = TRANSACTION_TAG  # "<version>:<application>" of the job that the batch is of
