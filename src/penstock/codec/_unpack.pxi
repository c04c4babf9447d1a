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


# -- entries as Python objects -----------------------------------------------------------------

# Safe because only verified entries are built, and an Entry is filled before it is visible to other
# code. The interpreter lock is held throughout.

cdef object next_sized(const uint8_t *entry, const Head *head, int64_t *at, bint as_text):
    # The sized field at `at`, which steps over it. Checked again: others may write these pages.
    cdef int64_t start = at[0] + 2
    cdef int64_t after = after_sized(entry, at[0], head.size - CRC_BYTES)
    if after < 0:
        raise BadEntry(head.offset, "changed while it was read")
    at[0] = after
    if as_text:
        return PyUnicode_DecodeUTF8(<char *>entry + start, after - start, NULL)
    return PyBytes_FromStringAndSize(<const char *>entry + start, after - start)


cdef dict headers_of(const uint8_t *entry, const Head *head, const Fields *fields):
    cdef dict headers = {}
    cdef int64_t at = fields.headers_at
    cdef int number
    for number in range(fields.headers):
        name = next_sized(entry, head, &at, True)
        PyDict_SetItem(headers, name, next_sized(entry, head, &at, True))
    return headers


cdef dict attributes_of(const uint8_t *entry, const Head *head, const Fields *fields):
    cdef dict attributes = {}
    cdef int64_t at = fields.attributes_at
    cdef int number
    cdef uint8_t tag
    for number in range(fields.attributes):
        tag = entry[at]
        at += 1
        PyDict_SetItem(attributes, tag, next_sized(entry, head, &at, False))
    return attributes


cdef extern from *:
    """
    /* An empty instance of a named tuple, to be filled before anyone sees it. Newer versions keep
       more than the items in a tuple, so there it is made by tuple itself from a plain one. */
    #define PENSTOCK_TUPLE_IS_ITEMS (PY_VERSION_HEX < 0x030E0000)
    static PyObject *penstock_new_tuple(PyObject *type, Py_ssize_t size)
    {
        return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, size);
    }
    """
    bint TUPLE_IS_ITEMS "PENSTOCK_TUPLE_IS_ITEMS"
    tuple penstock_new_tuple(object type, Py_ssize_t size)
    void PyObject_GC_UnTrack(object value)


cdef inline void put(tuple entry, Py_ssize_t number, object value) noexcept:
    Py_INCREF(value)
    PyTuple_SET_ITEM(entry, number, value)


cdef object entry_of(const uint8_t *data, const Head *head, const Fields *fields, int64_t seq_base):
    cdef const uint8_t *at = data + head.offset
    cdef object key = None
    cdef object headers = None
    cdef object attributes = None
    cdef object seq = seq_base + <int64_t>head.seq
    cdef object timestamp_ns = <int64_t>head.timestamp_ns
    cdef object payload = PyBytes_FromStringAndSize(
        <const char *>at + fields.payload_at, fields.payload_bytes
    )
    cdef object offset = head.offset
    cdef object size = head.size
    cdef object type_ = head.type
    cdef object priority = fields.priority
    cdef object expires_at_ns = fields.expires_at_ns
    cdef object deliver_at_ns = fields.deliver_at_ns
    cdef object compression = fields.compression
    cdef tuple entry
    if head.flags & HAS_KEY:
        key = PyBytes_FromStringAndSize(<const char *>at + fields.key_at, fields.key_bytes)
    if head.flags & HAS_HEADERS:
        headers = headers_of(at, head, fields)
    if head.flags & HAS_ATTRIBUTES:
        attributes = attributes_of(at, head, fields)
    if not TUPLE_IS_ITEMS:
        return tuple.__new__(
            Entry,
            (
                seq, timestamp_ns, type_, payload, priority, expires_at_ns, deliver_at_ns, key,
                headers, attributes, compression, offset, size,
            ),
        )
    entry = penstock_new_tuple(Entry, ENTRY_FIELDS)
    put(entry, 0, seq)
    put(entry, 1, timestamp_ns)
    put(entry, 2, type_)
    put(entry, 3, payload)
    put(entry, 4, priority)
    put(entry, 5, expires_at_ns)
    put(entry, 6, deliver_at_ns)
    put(entry, 7, key)
    put(entry, 8, headers)
    put(entry, 9, attributes)
    put(entry, 10, compression)
    put(entry, 11, offset)
    put(entry, 12, size)
    if headers is None and attributes is None:
        # Numbers and bytes cannot be part of a cycle: the collector need not look at it.
        PyObject_GC_UnTrack(entry)
    return entry


cdef inline Verdict read_entry(
    const uint8_t *data,
    int64_t offset,
    int64_t end,
    int64_t seq_base,
    int64_t max_entry_bytes,
    Head *head,
    Fields *fields,
) noexcept nogil:
    cdef Verdict verdict = read_head(data, offset, end, seq_base, max_entry_bytes, head)
    if verdict == GOOD:
        verdict = read_fields(data + offset, head, fields)
    if verdict == GOOD and fields.headers:
        if not headers_are_utf8(data + offset, head.size - CRC_BYTES, fields):
            verdict = NOT_UTF8
    return verdict


def unpack(
    buffer,
    int64_t offset,
    int64_t end,
    *,
    seq_base=0,
    max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES,
):
    """Return the entry at `offset`; raise BadEntry if there is none."""
    cdef int64_t base = checked_seq(seq_base)
    cdef int64_t limit = checked_entry_limit(max_entry_bytes)
    cdef View view = view_of(buffer, offset, end)
    cdef Head head
    cdef Fields fields
    cdef Verdict verdict = read_entry(view.data, offset, end, base, limit, &head, &fields)
    if verdict != GOOD:
        raise bad_entry(verdict, &head, &fields, limit)
    return entry_of(view.data, &head, &fields, base)


def read_entries(
    buffer,
    int64_t start,
    int64_t end,
    *,
    int64_t max_count,
    int64_t max_bytes=(1 << 62),
    seq_base=0,
    max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES,
):
    """Return entries from `start` on, without checkpoints, and the offset after them."""
    cdef int64_t base = checked_seq(seq_base)
    cdef int64_t limit = checked_entry_limit(max_entry_bytes)
    cdef View view = view_of(buffer, start, end)
    cdef list entries = []
    cdef int64_t count = 0
    cdef int64_t offset = start
    cdef Head head
    cdef Fields fields
    cdef Verdict verdict
    while count < max_count and offset < end:
        verdict = read_entry(view.data, offset, end, base, limit, &head, &fields)
        if verdict == ZEROS:
            break
        if verdict != GOOD:
            if offset == start:
                raise bad_entry(verdict, &head, &fields, limit)
            break
        if count and offset + head.size - start > max_bytes:
            break
        if head.type != CHECKPOINT:
            PyList_Append(entries, entry_of(view.data, &head, &fields, base))
            count += 1
        offset += head.size
    return entries, offset
