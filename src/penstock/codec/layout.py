"""The constants of the format, for both codecs and the ledger.

To change the format: add a new flag, attribute tag or entry type here; teach the pure codec
(`*_py.py`), then the compiled one (`_layout.pxi` has these numbers again, the other `_*.pxi` use
them); extend `docs/format.md` and its worked example; never rename or reuse a number. A
reader that meets a number it does not know must say "written by a newer version", so old readers
stay safe.
"""

from struct import calcsize
from typing import Final

# Entry: length u32 | type u8 | flags u8 | seq u64 | timestamp u64 | optional | payload | crc u32
LENGTH_BYTES: Final = 4
FIXED_BYTES: Final = 22  # length .. timestamp: what precedes the optional fields
CRC_BYTES: Final = 4
ENTRY_OVERHEAD_BYTES: Final = FIXED_BYTES + CRC_BYTES
MIN_LENGTH: Final = ENTRY_OVERHEAD_BYTES - LENGTH_BYTES  # the smallest value of the length field

DATA: Final = 1
TOMBSTONE: Final = 2  # payload: last removed seq u64; the entry's own seq is the first removed
CHECKPOINT: Final = 3  # payload: CHECKPOINT_FORMAT
FIRST_EVENT: Final = 16  # types from here up are events; the queue layer numbers them
LAST_EVENT: Final = 255

HAS_EXPIRES_AT: Final = 0x01
HAS_HEADERS: Final = 0x02
IS_COMPRESSED: Final = 0x04
HAS_PRIORITY: Final = 0x08
HAS_DELIVER_AT: Final = 0x10
HAS_KEY: Final = 0x20
HAS_ATTRIBUTES: Final = 0x40
RESERVED_FLAG: Final = 0x80

DEFAULT_PRIORITY: Final = 5
MAX_PRIORITY: Final = 9

GZIP: Final = 1
ZSTD: Final = 2

# synced_upto u64: this file is durable up to that offset.
# frame_count u32, frame_bytes u32: the entries that follow and belong together (0 and 0: none).
CHECKPOINT_FORMAT: Final = "<QII"
CHECKPOINT_BYTES: Final = ENTRY_OVERHEAD_BYTES + 16

# The body of an event: group, attempt, number of runs; then each run (first seq, count); then the
# fields of its type (`queue.events`). Most events are about one message, and have no more fields.
EVENT_HEAD_FORMAT: Final = "HHH"
EVENT_RUN_FORMAT: Final = "QI"
EVENT_OF_ONE_FORMAT: Final = "<" + EVENT_HEAD_FORMAT + EVENT_RUN_FORMAT
EVENT_OF_ONE_BYTES: Final = calcsize(EVENT_OF_ONE_FORMAT)

# The attributes that a reader of messages must know.
MAX_ATTEMPTS_TAG: Final = 2
CONTENT_TYPE_TAG: Final = 3
TENANT_TAG: Final = 13
MAX_FIELD_BYTES: Final = 0xFFFF  # header name, header value, key, attribute
MAX_HEADERS: Final = 0xFFFF
MAX_ATTRIBUTES: Final = 0xFF
MAX_SEQ: Final = (1 << 63) - 1  # u64 on disk; kept below 2^63 so that signed readers agree
MAX_TIMESTAMP_NS: Final = (1 << 63) - 1
DEFAULT_MAX_ENTRY_BYTES: Final = 32 << 20
MAX_ENTRY_BYTES: Final = 1 << 30  # the most any setting may allow
MAX_BATCH_BYTES: Final = 1 << 30

INDEX_STEP_BYTES: Final = 4096
INDEX_POINT_BYTES: Final = 24  # seq u64 | timestamp u64 | offset u64
