# Whether bytes are an entry, and where its parts are. Safe because read_frame compares the length
# with the range before a byte behind it is touched, and read_fields compares every field with what
# is left of the entry. No Python object is touched, so it runs without the interpreter lock.

cdef enum Verdict:
    GOOD
    ZEROS
    CUT_LENGTH
    SHORT_LENGTH
    OVER_LIMIT
    BEYOND_END
    BAD_CHECKSUM
    RESERVED_SET
    UNKNOWN_TYPE
    SEQ_TOO_HIGH
    TIMESTAMP_TOO_HIGH
    FIELDS_TOO_LONG
    EXPIRES_AT_TOO_HIGH
    BAD_PRIORITY
    DELIVER_AT_TOO_HIGH
    NOT_UTF8
    CHECKPOINT_SIZE
    INSIDE_BATCH
    EMPTY_FRAME
    PROMISES_TOO_MUCH
    TOMBSTONE_SIZE
    NOT_FILLED
    IMPOSSIBLE_LENGTH
    NO_MEMORY


cdef struct Head:
    int64_t offset
    int64_t size
    uint64_t seq  # as stored
    uint64_t timestamp_ns
    uint32_t length
    uint8_t type
    uint8_t flags


cdef struct Fields:  # where the fields are, from the entry's start
    uint64_t expires_at_ns
    uint64_t deliver_at_ns
    int64_t headers_at
    int64_t key_at
    int64_t attributes_at
    int64_t payload_at
    int64_t payload_bytes
    uint16_t headers
    uint16_t key_bytes
    uint8_t attributes
    uint8_t priority
    uint8_t compression


cdef str reason_of(
    Verdict verdict, const Head *head, const Fields *fields, int64_t max_entry_bytes
):
    if verdict == ZEROS:
        return "nothing written here"
    if verdict == CUT_LENGTH:
        return "cut off inside the length"
    if verdict == SHORT_LENGTH:
        return f"length {head.length} is less than {MIN_LENGTH}"
    if verdict == OVER_LIMIT:
        return f"length {head.length} is beyond the limit of {max_entry_bytes} bytes"
    if verdict == BEYOND_END:
        return f"length {head.length} reaches beyond the end"
    if verdict == BAD_CHECKSUM:
        return "checksum does not match"
    if verdict == RESERVED_SET:
        return "a reserved flag is set: written by a newer version"
    if verdict == UNKNOWN_TYPE:
        return f"unknown entry type {head.type}: written by a newer version"
    if verdict == SEQ_TOO_HIGH:
        return "a seq beyond 2^63 - 1"
    if verdict == TIMESTAMP_TOO_HIGH:
        return "a timestamp beyond the year 2262"
    if verdict == FIELDS_TOO_LONG:
        return "fields reach beyond the entry"
    if verdict == EXPIRES_AT_TOO_HIGH:
        return "expires_at is beyond the year 2262"
    if verdict == BAD_PRIORITY:
        return f"priority {fields.priority} is not between 0 and {MAX_PRIORITY}"
    if verdict == DELIVER_AT_TOO_HIGH:
        return "deliver_at is beyond the year 2262"
    if verdict == NOT_UTF8:
        return "a header is not UTF-8"
    if verdict == CHECKPOINT_SIZE:
        return "a checkpoint of the wrong size"
    if verdict == INSIDE_BATCH:
        return "a checkpoint inside a batch"
    if verdict == EMPTY_FRAME:
        return "a frame without entries"
    if verdict == PROMISES_TOO_MUCH:
        return "a checkpoint that promises more than there is"
    if verdict == TOMBSTONE_SIZE:
        return "a tombstone of the wrong size"
    if verdict == NOT_FILLED:
        return "a batch that does not fill its frame"
    return f"length {head.length} cannot be right"


cdef inline bint is_newer(Verdict verdict) noexcept nogil:
    return verdict == RESERVED_SET or verdict == UNKNOWN_TYPE


cdef object bad_entry(
    Verdict verdict, const Head *head, const Fields *fields, int64_t max_entry_bytes
):
    cdef str reason = reason_of(verdict, head, fields, max_entry_bytes)
    if is_newer(verdict):
        return NewerVersion(head.offset, reason)
    return BadEntry(head.offset, reason)


cdef inline Verdict read_frame(
    const uint8_t *data, int64_t offset, int64_t end, int64_t max_entry_bytes, Head *head
) noexcept nogil:
    # ZEROS where nothing is written yet; else whether length and checksum are right.
    cdef const uint8_t *at = data + offset
    cdef int64_t left = end - offset
    head.offset = offset
    if left < LENGTH_BYTES:
        while left > 0:
            left -= 1
            if at[left]:
                return CUT_LENGTH
        return ZEROS
    head.length = load_published_u32(at)
    if head.length == 0:
        return ZEROS
    head.size = LENGTH_BYTES + <int64_t>head.length
    if head.length < MIN_LENGTH:
        return SHORT_LENGTH
    if head.size > max_entry_bytes:
        return OVER_LIMIT
    if head.size > left:
        return BEYOND_END
    if crc32c_of(at, head.size - CRC_BYTES) != load_u32(at + head.size - CRC_BYTES):
        return BAD_CHECKSUM
    return GOOD


cdef inline Verdict read_head(
    const uint8_t *data,
    int64_t offset,
    int64_t end,
    int64_t seq_base,
    int64_t max_entry_bytes,
    Head *head,
) noexcept nogil:
    cdef Verdict verdict = read_frame(data, offset, end, max_entry_bytes, head)
    cdef const uint8_t *at = data + offset
    if verdict != GOOD:
        return verdict
    head.type = at[4]
    head.flags = at[5]
    head.seq = load_u64(at + 6)
    head.timestamp_ns = load_u64(at + 14)
    if head.flags & RESERVED_FLAG:
        return RESERVED_SET
    if head.type < FIRST_EVENT and not DATA <= head.type <= CHECKPOINT:
        return UNKNOWN_TYPE
    if head.seq > <uint64_t>(MAX_SEQ - seq_base):
        return SEQ_TOO_HIGH
    if head.timestamp_ns > <uint64_t>MAX_TIMESTAMP_NS:
        return TIMESTAMP_TOO_HIGH
    return GOOD


cdef inline int64_t after_sized(const uint8_t *entry, int64_t at, int64_t stop) noexcept nogil:
    # The end of the sized field at `at`, -1 if it is not inside the entry.
    if stop - at < 2:
        return -1
    at += 2 + <int64_t>load_u16(entry + at)
    return at if at <= stop else -1


cdef Verdict read_fields(const uint8_t *entry, const Head *head, Fields *fields) noexcept nogil:
    cdef int64_t at = FIXED_BYTES
    cdef int64_t stop = head.size - CRC_BYTES
    cdef uint8_t flags = head.flags
    cdef int number
    fields.expires_at_ns = 0
    fields.deliver_at_ns = 0
    fields.headers = 0
    fields.attributes = 0
    fields.priority = DEFAULT_PRIORITY
    fields.compression = 0
    if flags & HAS_EXPIRES_AT:
        if stop - at < 8:
            return FIELDS_TOO_LONG
        fields.expires_at_ns = load_u64(entry + at)
        if fields.expires_at_ns > <uint64_t>MAX_TIMESTAMP_NS:
            return EXPIRES_AT_TOO_HIGH
        at += 8
    if flags & HAS_HEADERS:
        if stop - at < 2:
            return FIELDS_TOO_LONG
        fields.headers = load_u16(entry + at)
        at += 2
        fields.headers_at = at
        for number in range(2 * <int>fields.headers):
            at = after_sized(entry, at, stop)
            if at < 0:
                return FIELDS_TOO_LONG
    if flags & IS_COMPRESSED:
        if stop - at < 1:
            return FIELDS_TOO_LONG
        fields.compression = entry[at]
        at += 1
    if flags & HAS_PRIORITY:
        if stop - at < 1:
            return FIELDS_TOO_LONG
        fields.priority = entry[at]
        if fields.priority > MAX_PRIORITY:
            return BAD_PRIORITY
        at += 1
    if flags & HAS_DELIVER_AT:
        if stop - at < 8:
            return FIELDS_TOO_LONG
        fields.deliver_at_ns = load_u64(entry + at)
        if fields.deliver_at_ns > <uint64_t>MAX_TIMESTAMP_NS:
            return DELIVER_AT_TOO_HIGH
        at += 8
    if flags & HAS_KEY:
        fields.key_at = at + 2
        at = after_sized(entry, at, stop)
        if at < 0:
            return FIELDS_TOO_LONG
        fields.key_bytes = <uint16_t>(at - fields.key_at)
    if flags & HAS_ATTRIBUTES:
        if stop - at < 1:
            return FIELDS_TOO_LONG
        fields.attributes = entry[at]
        at += 1
        fields.attributes_at = at
        for number in range(fields.attributes):
            at = after_sized(entry, at + 1, stop)
            if at < 0:
                return FIELDS_TOO_LONG
    fields.payload_at = at
    fields.payload_bytes = stop - at
    return GOOD


cdef bint is_utf8(const uint8_t *text, int64_t count) noexcept nogil:
    # As Python decodes it: shortest forms only, no surrogates, nothing above U+10FFFF.
    cdef int64_t at = 0
    cdef uint8_t first
    cdef uint8_t second
    while at < count:
        first = text[at]
        if first < 0x80:
            at += 1
            continue
        if first < 0xC2 or first > 0xF4 or count - at < 2:
            return False
        second = text[at + 1]
        if second & 0xC0 != 0x80:
            return False
        if first < 0xE0:
            at += 2
            continue
        if count - at < 3 or text[at + 2] & 0xC0 != 0x80:
            return False
        if first < 0xF0:
            if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
                return False
            at += 3
            continue
        if count - at < 4 or text[at + 3] & 0xC0 != 0x80:
            return False
        if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
            return False
        at += 4
    return True


cdef bint headers_are_utf8(const uint8_t *entry, int64_t stop, const Fields *fields) noexcept nogil:
    cdef int64_t at = fields.headers_at
    cdef int64_t after
    cdef int number
    for number in range(2 * <int>fields.headers):
        after = after_sized(entry, at, stop)
        if after < 0 or not is_utf8(entry + at + 2, after - at - 2):
            return False
        at = after
    return True
