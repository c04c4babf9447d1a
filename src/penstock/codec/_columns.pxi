# A run of entries as Arrow-ready buffers. Safe because a row is only added once every buffer it
# goes to has room for all of the entry's bytes, and offsets (32 bit) count at most the bytes of the
# rows, which stay within MAX_BATCH_BYTES or one entry.

cdef enum:  # the buffers, in the order of SINKS
    SEQ_SINK
    TIMESTAMP_SINK
    TYPE_SINK
    PRIORITY_SINK
    EXPIRES_SINK
    EXPIRES_VALID_SINK
    DELIVER_SINK
    DELIVER_VALID_SINK
    COMPRESSION_SINK
    OFFSET_SINK
    SIZE_SINK
    PAYLOAD_OFFSETS_SINK
    PAYLOAD_SINK
    KEY_OFFSETS_SINK
    KEY_SINK
    KEY_VALID_SINK
    HEADERS_OFFSETS_SINK
    NAME_OFFSETS_SINK
    NAME_SINK
    VALUE_OFFSETS_SINK
    VALUE_SINK
    ATTRIBUTES_OFFSETS_SINK
    TAG_SINK
    ATTRIBUTE_OFFSETS_SINK
    ATTRIBUTE_SINK
    SINK_COUNT

# For each: the column it belongs to, its name, its bits a row (0: as many as the rows bring), and
# whether it begins with an offset of zero.
cdef tuple SINKS = (
    ("seq", "seq", 64, False),
    ("timestamp_ns", "timestamp_ns", 64, False),
    ("type", "type", 8, False),
    ("priority", "priority", 8, False),
    ("expires_at_ns", "expires_at_ns", 64, False),
    ("expires_at_ns", "expires_at_ns.validity", 1, False),
    ("deliver_at_ns", "deliver_at_ns", 64, False),
    ("deliver_at_ns", "deliver_at_ns.validity", 1, False),
    ("compression", "compression", 8, False),
    ("offset", "offset", 64, False),
    ("size", "size", 32, False),
    ("payload", "payload.offsets", 32, True),
    ("payload", "payload", 0, False),
    ("key", "key.offsets", 32, True),
    ("key", "key", 0, False),
    ("key", "key.validity", 1, False),
    ("headers", "headers.offsets", 32, True),
    ("headers", "headers.keys.offsets", 0, True),
    ("headers", "headers.keys", 0, False),
    ("headers", "headers.values.offsets", 0, True),
    ("headers", "headers.values", 0, False),
    ("attributes", "attributes.offsets", 32, True),
    ("attributes", "attributes.tags", 0, False),
    ("attributes", "attributes.values.offsets", 0, True),
    ("attributes", "attributes.values", 0, False),
)


cdef struct Sink:
    uint8_t *data  # NULL: not asked for
    int64_t used
    int64_t room


cdef struct Table:
    Sink sinks[SINK_COUNT]
    int64_t rows
    int64_t max_rows
    int64_t total_bytes  # of the rows' entries
    int64_t max_bytes
    int64_t seq_base
    int64_t max_entry_bytes
    bint events


cdef inline void put_u8(Sink *sink, uint8_t value) noexcept nogil:
    if sink.data != NULL:
        sink.data[sink.used] = value
        sink.used += 1


cdef inline void put_u32(Sink *sink, uint32_t value) noexcept nogil:
    if sink.data != NULL:
        store_u32(sink.data + sink.used, value)
        sink.used += 4


cdef inline void put_u64(Sink *sink, uint64_t value) noexcept nogil:
    if sink.data != NULL:
        store_u64(sink.data + sink.used, value)
        sink.used += 8


cdef inline void put_bit(Sink *sink, int64_t row, bint value) noexcept nogil:
    if sink.data != NULL:
        if row % 8 == 0:
            sink.data[sink.used] = 0
            sink.used += 1
        sink.data[sink.used - 1] |= <uint8_t>(value << (row % 8))


cdef inline void put_run(
    Sink *offsets, Sink *sink, const uint8_t *data, int64_t count
) noexcept nogil:
    if sink.data != NULL:
        memcpy(sink.data + sink.used, data, count)
        sink.used += count
        store_u32(offsets.data + offsets.used, <uint32_t>sink.used)
        offsets.used += 4


cdef inline bint has_room(const Sink *sink, int64_t count) noexcept nogil:
    return sink.data == NULL or sink.room - sink.used >= count


cdef bint row_fits(const Table *table, const Head *head) noexcept nogil:
    # An entry of n bytes brings at most n bytes to any buffer, but for the 32-bit offsets of
    # attributes: 4 bytes for each 3 in the entry (tag, length).
    cdef int64_t size = head.size
    cdef int number
    if not has_room(&table.sinks[PAYLOAD_SINK], size):
        return False
    if head.flags & HAS_KEY and not has_room(&table.sinks[KEY_SINK], size):
        return False
    if head.flags & HAS_HEADERS:
        for number in range(NAME_OFFSETS_SINK, VALUE_SINK + 1):
            if not has_room(&table.sinks[number], size):
                return False
    if head.flags & HAS_ATTRIBUTES:
        for number in range(TAG_SINK, ATTRIBUTE_SINK + 1):
            if not has_room(&table.sinks[number], 2 * size):
                return False
    return True


cdef int64_t put_sized(
    Sink *offsets, Sink *sink, const uint8_t *entry, int64_t at, int64_t stop
) noexcept nogil:
    # Checked again, though read_fields did: others may write these pages.
    cdef int64_t after = after_sized(entry, at, stop)
    if after < 0:
        put_run(offsets, sink, entry, 0)
        return stop
    put_run(offsets, sink, entry + at + 2, after - at - 2)
    return after


cdef void add_row(
    Table *table, const uint8_t *entry, const Head *head, const Fields *fields
) noexcept nogil:
    cdef Sink *sinks = table.sinks
    cdef int64_t row = table.rows
    cdef int64_t stop = head.size - CRC_BYTES
    cdef int64_t at
    cdef int number
    put_u64(&sinks[SEQ_SINK], head.seq + <uint64_t>table.seq_base)
    put_u64(&sinks[TIMESTAMP_SINK], head.timestamp_ns)
    put_u8(&sinks[TYPE_SINK], head.type)
    put_u8(&sinks[PRIORITY_SINK], fields.priority)
    put_u64(&sinks[EXPIRES_SINK], fields.expires_at_ns)
    put_bit(&sinks[EXPIRES_VALID_SINK], row, fields.expires_at_ns != 0)
    put_u64(&sinks[DELIVER_SINK], fields.deliver_at_ns)
    put_bit(&sinks[DELIVER_VALID_SINK], row, fields.deliver_at_ns != 0)
    put_u8(&sinks[COMPRESSION_SINK], fields.compression)
    put_u64(&sinks[OFFSET_SINK], <uint64_t>head.offset)
    put_u32(&sinks[SIZE_SINK], <uint32_t>head.size)
    put_run(
        &sinks[PAYLOAD_OFFSETS_SINK],
        &sinks[PAYLOAD_SINK],
        entry + fields.payload_at,
        fields.payload_bytes,
    )
    if sinks[KEY_SINK].data != NULL:
        if head.flags & HAS_KEY:
            put_run(
                &sinks[KEY_OFFSETS_SINK], &sinks[KEY_SINK], entry + fields.key_at, fields.key_bytes
            )
        else:
            put_run(&sinks[KEY_OFFSETS_SINK], &sinks[KEY_SINK], entry, 0)
        put_bit(&sinks[KEY_VALID_SINK], row, (head.flags & HAS_KEY) != 0)
    if sinks[NAME_SINK].data != NULL:
        at = fields.headers_at
        for number in range(fields.headers):
            at = put_sized(&sinks[NAME_OFFSETS_SINK], &sinks[NAME_SINK], entry, at, stop)
            at = put_sized(&sinks[VALUE_OFFSETS_SINK], &sinks[VALUE_SINK], entry, at, stop)
        put_u32(&sinks[HEADERS_OFFSETS_SINK], <uint32_t>(sinks[NAME_OFFSETS_SINK].used // 4 - 1))
    if sinks[ATTRIBUTE_SINK].data != NULL:
        at = fields.attributes_at
        for number in range(fields.attributes):
            put_u8(&sinks[TAG_SINK], entry[at])
            at = put_sized(
                &sinks[ATTRIBUTE_OFFSETS_SINK], &sinks[ATTRIBUTE_SINK], entry, at + 1, stop
            )
        put_u32(&sinks[ATTRIBUTES_OFFSETS_SINK], <uint32_t>sinks[TAG_SINK].used)
    table.rows += 1
    table.total_bytes += head.size


cdef Verdict fill(
    Table *table, const uint8_t *data, int64_t end, Head *head, Fields *fields
) noexcept nogil:
    # NO_MEMORY: the row at head.offset needs more room; come again with it.
    cdef Verdict verdict
    cdef bint texts = table.sinks[NAME_SINK].data != NULL
    while table.rows < table.max_rows and head.offset < end:
        verdict = read_head(
            data, head.offset, end, table.seq_base, table.max_entry_bytes, head
        )
        if verdict == GOOD:
            verdict = read_fields(data + head.offset, head, fields)
        if verdict != GOOD:
            return verdict
        if head.type >= FIRST_EVENT if table.events else head.type == DATA:
            if table.rows and table.total_bytes + head.size > table.max_bytes:
                return ZEROS
            if texts and fields.headers:
                if not headers_are_utf8(data + head.offset, head.size - CRC_BYTES, fields):
                    return NOT_UTF8
            if not row_fits(table, head):
                return NO_MEMORY
            add_row(table, data + head.offset, head, fields)
        head.offset += head.size
    return ZEROS


cdef int begin_sinks(Table *table, list sinks, object names, int64_t span) except -1:
    # Fixed widths for as many rows as can come; the rest for the payloads that can, or a little.
    cdef int64_t rows = max(1, min(table.max_rows, span // ENTRY_OVERHEAD_BYTES))
    cdef int64_t room
    cdef int number
    cdef Sink *sink
    for number, (column, name, bits, offsets) in enumerate(SINKS):
        sink = &table.sinks[number]
        if column not in names:
            sinks.append(None)
            continue
        if bits:
            room = (rows * <int64_t>bits + 7) // 8
        else:
            room = span if number == PAYLOAD_SINK else 1024
        if offsets:
            room += 4
        buffer = PyByteArray_FromStringAndSize(NULL, room)
        sinks.append(buffer)
        sink.data = <uint8_t *>PyByteArray_AS_STRING(buffer)
        sink.room = room
        if offsets:
            put_u32(sink, 0)
    return 0


cdef int grow_sinks(Table *table, list sinks, int64_t size) except -1:
    cdef Sink *sink
    cdef int number
    for number, (_, _, bits, _) in enumerate(SINKS):
        sink = &table.sinks[number]
        if sink.data == NULL or bits or has_room(sink, 2 * size):
            continue
        buffer = sinks[number]
        PyByteArray_Resize(buffer, sink.room + max(sink.room, 2 * size))
        sink.data = <uint8_t *>PyByteArray_AS_STRING(buffer)
        sink.room = PyByteArray_GET_SIZE(buffer)
    return 0


def decode_columns(
    buffer,
    int64_t start,
    int64_t end,
    names,
    *,
    int64_t max_rows=65536,
    int64_t max_bytes=8 << 20,
    bint events=False,
    seq_base=0,
    max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES,
):
    """Return the named columns of the data entries (or events) from `start` on."""
    cdef Table table
    cdef Head head
    cdef Fields fields
    cdef Verdict verdict
    cdef View view
    cdef list sinks = []
    cdef int number
    memset(&table, 0, sizeof(Table))
    table.seq_base = checked_seq(seq_base)
    table.max_entry_bytes = checked_entry_limit(max_entry_bytes)
    table.max_rows = max_rows
    table.max_bytes = min(max_bytes, <int64_t>MAX_BATCH_BYTES)
    table.events = events
    for name in names:
        if name not in COLUMN_NAMES:
            raise InvalidInput(f"there is no column {name!r}; there are {COLUMN_NAMES}")
    view = view_of(buffer, start, end)
    begin_sinks(&table, sinks, frozenset(names), max(0, min(end - start, table.max_bytes)))
    head.offset = start
    while True:
        if worth_a_release(start, end):
            with nogil:
                verdict = fill(&table, view.data, end, &head, &fields)
        else:
            verdict = fill(&table, view.data, end, &head, &fields)
        if verdict != NO_MEMORY:
            break
        grow_sinks(&table, sinks, head.size)
    if verdict != ZEROS and head.offset == start:
        raise bad_entry(verdict, &head, &fields, table.max_entry_bytes)
    buffers = {}
    for number, (_, name, _, _) in enumerate(SINKS):
        if sinks[number] is not None:
            PyByteArray_Resize(sinks[number], table.sinks[number].used)
            buffers[name] = sinks[number]
    return Columns(table.rows, head.offset, buffers)
