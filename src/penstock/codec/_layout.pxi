# The numbers of layout.py as compile-time constants. They are compared with layout.py when the module
# is imported: a module built for another format refuses to load.

cdef enum:
    LENGTH_BYTES = 4
    FIXED_BYTES = 22
    CRC_BYTES = 4
    ENTRY_OVERHEAD_BYTES = 26
    MIN_LENGTH = 22
    DATA = 1
    TOMBSTONE = 2
    CHECKPOINT = 3
    FIRST_EVENT = 16
    LAST_EVENT = 255
    HAS_EXPIRES_AT = 0x01
    HAS_HEADERS = 0x02
    IS_COMPRESSED = 0x04
    HAS_PRIORITY = 0x08
    HAS_DELIVER_AT = 0x10
    HAS_KEY = 0x20
    HAS_ATTRIBUTES = 0x40
    RESERVED_FLAG = 0x80
    DEFAULT_PRIORITY = 5
    MAX_PRIORITY = 9
    CHECKPOINT_BYTES = 42
    EVENT_OF_ONE_BYTES = 18
    CONTENT_TYPE_TAG = 3
    MAX_ATTEMPTS_TAG = 2
    MAX_FIELD_BYTES = 0xFFFF
    MAX_HEADERS = 0xFFFF
    MAX_ATTRIBUTES = 0xFF
    DEFAULT_MAX_ENTRY_BYTES = 32 << 20
    MAX_ENTRY_BYTES = 1 << 30
    MAX_BATCH_BYTES = 1 << 30
    INDEX_STEP_BYTES = 4096
    INDEX_POINT_BYTES = 24

cdef extern from *:
    """
    #define PENSTOCK_MAX_SEQ INT64_MAX
    #define PENSTOCK_MAX_TIMESTAMP_NS INT64_MAX
    """
    const int64_t MAX_SEQ "PENSTOCK_MAX_SEQ"
    const int64_t MAX_TIMESTAMP_NS "PENSTOCK_MAX_TIMESTAMP_NS"


cdef enum:
    ENTRY_FIELDS = 13
    DRAFT_FIELDS = 9


def _check_layout():
    compiled = dict(
        LENGTH_BYTES=LENGTH_BYTES, FIXED_BYTES=FIXED_BYTES, CRC_BYTES=CRC_BYTES,
        ENTRY_OVERHEAD_BYTES=ENTRY_OVERHEAD_BYTES, MIN_LENGTH=MIN_LENGTH, DATA=DATA,
        TOMBSTONE=TOMBSTONE, CHECKPOINT=CHECKPOINT, FIRST_EVENT=FIRST_EVENT,
        LAST_EVENT=LAST_EVENT, HAS_EXPIRES_AT=HAS_EXPIRES_AT, HAS_HEADERS=HAS_HEADERS,
        IS_COMPRESSED=IS_COMPRESSED, HAS_PRIORITY=HAS_PRIORITY, HAS_DELIVER_AT=HAS_DELIVER_AT,
        HAS_KEY=HAS_KEY, HAS_ATTRIBUTES=HAS_ATTRIBUTES, RESERVED_FLAG=RESERVED_FLAG,
        DEFAULT_PRIORITY=DEFAULT_PRIORITY, MAX_PRIORITY=MAX_PRIORITY,
        CHECKPOINT_BYTES=CHECKPOINT_BYTES, EVENT_OF_ONE_BYTES=EVENT_OF_ONE_BYTES,
        CONTENT_TYPE_TAG=CONTENT_TYPE_TAG, MAX_FIELD_BYTES=MAX_FIELD_BYTES,
        MAX_HEADERS=MAX_HEADERS, MAX_ATTRIBUTES=MAX_ATTRIBUTES,
        DEFAULT_MAX_ENTRY_BYTES=DEFAULT_MAX_ENTRY_BYTES, MAX_ENTRY_BYTES=MAX_ENTRY_BYTES,
        MAX_BATCH_BYTES=MAX_BATCH_BYTES, INDEX_STEP_BYTES=INDEX_STEP_BYTES,
        INDEX_POINT_BYTES=INDEX_POINT_BYTES, MAX_SEQ=MAX_SEQ, MAX_TIMESTAMP_NS=MAX_TIMESTAMP_NS,
        CHECKPOINT_FORMAT="<QII", EVENT_OF_ONE_FORMAT="<HHHQI",
    )
    for name, value in compiled.items():
        if getattr(layout, name, None) != value:
            raise ImportError(
                f"the compiled codec was built for another format ({name} is {value} in it); "
                "build it again"
            )
    if len(Entry._fields) != ENTRY_FIELDS or len(Draft._fields) != DRAFT_FIELDS:
        raise ImportError("the compiled codec was built for other entries; build it again")


_check_layout()
