# One entry to bytes. Safe because everything that can fail, and everything that can run Python code
# (a mapping's items(), an object's buffer), happens while a Piece is gathered; writing it is a few
# copies of known size that can do neither.

cdef type DRAFT = Draft

cdef enum:
    SCRATCH_BYTES = 512


cdef struct Piece:  # one entry that can be written
    const uint8_t *payload
    Py_ssize_t payload_bytes
    Py_ssize_t fields_at  # of its optional fields, in the scratch
    Py_ssize_t fields_bytes
    PyObject *note  # what is noted of it, or NULL
    uint8_t type
    uint8_t flags


cdef struct Scratch:  # the optional fields of a call's entries, and what must stay until its end
    PyObject *kept  # list of copied payloads, or NULL
    uint8_t *data
    Py_ssize_t used
    Py_ssize_t room
    int64_t noted_tags  # which attributes are noted; -1: nothing is
    uint8_t first[SCRATCH_BYTES]


cdef inline void begin_scratch(Scratch *scratch, int64_t noted_tags) noexcept:
    scratch.noted_tags = noted_tags
    scratch.kept = NULL
    scratch.data = scratch.first
    scratch.used = 0
    scratch.room = SCRATCH_BYTES


cdef inline void end_scratch(Scratch *scratch) noexcept:
    if scratch.data != scratch.first:
        PyMem_Free(scratch.data)
    Py_XDECREF(scratch.kept)


cdef uint8_t *take_scratch(Scratch *scratch, Py_ssize_t count) except NULL:
    # Room for `count` more bytes; valid until the next call.
    cdef uint8_t *bigger
    cdef Py_ssize_t room = scratch.room
    if count > room - scratch.used:
        room = 2 * room + count
        if scratch.data == scratch.first:
            bigger = <uint8_t *>PyMem_Malloc(room)
            if bigger != NULL:
                memcpy(bigger, scratch.data, scratch.used)
        else:
            bigger = <uint8_t *>PyMem_Realloc(scratch.data, room)
        if bigger == NULL:
            raise MemoryError()
        scratch.data = bigger
        scratch.room = room
    scratch.used += count
    return scratch.data + scratch.used - count


cdef int add_sized(Scratch *scratch, str name, const char *data, Py_ssize_t count) except -1:
    cdef uint8_t *at
    if count > MAX_FIELD_BYTES:
        raise TooLarge(f"{name} has {count} bytes; the maximum is {MAX_FIELD_BYTES}")
    at = take_scratch(scratch, 2 + count)
    store_u16(at, <uint16_t>count)
    memcpy(at + 2, data, count)
    return 0


cdef int add_bytes(Scratch *scratch, str name, object value) except -1:
    cdef Py_buffer held
    if PyBytes_Check(value):
        return add_sized(scratch, name, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    PyObject_GetBuffer(value, &held, PyBUF_SIMPLE)
    try:
        return add_sized(scratch, name, <const char *>held.buf, held.len)
    finally:
        PyBuffer_Release(&held)


cdef int add_text(Scratch *scratch, str name, object text) except -1:
    cdef Py_ssize_t count
    cdef const char *data
    try:
        data = PyUnicode_AsUTF8AndSize(text, &count)
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{name} is not valid text: {error}") from None
    return add_sized(scratch, name, data, count)


cdef inline dict dict_of(object mapping):
    return <dict>mapping if type(mapping) is dict else dict(mapping.items())


cdef inline int check_counted(Py_ssize_t left) except -1:
    # A value's own code may have changed the dict: the count is already written.
    if left:
        raise RuntimeError("headers or attributes changed while they were read")
    return 0


cdef int add_headers(Scratch *scratch, object mapping) except -1:
    cdef dict headers = dict_of(mapping)
    cdef Py_ssize_t count = len(headers)
    if count > MAX_HEADERS:
        raise TooLarge(f"{count} headers; the maximum is {MAX_HEADERS}")
    store_u16(take_scratch(scratch, 2), <uint16_t>count)
    for name, value in headers.items():
        add_text(scratch, "header name", name)
        add_text(scratch, "header value", value)
        count -= 1
    return check_counted(count)


cdef int64_t add_attributes(Scratch *scratch, object mapping) except -1:
    # Return the tags that are noted.
    cdef dict attributes = dict_of(mapping)
    cdef Py_ssize_t count = len(attributes)
    cdef int64_t number
    cdef int64_t tags = 0
    if count > MAX_ATTRIBUTES:
        raise TooLarge(f"{count} attributes; the maximum is {MAX_ATTRIBUTES}")
    take_scratch(scratch, 1)[0] = <uint8_t>count
    for tag, value in attributes.items():
        number = bounded(tag)
        if not 0 <= number <= 0xFF:
            raise InvalidInput(f"attribute tag {tag} is not between 0 and 255")
        take_scratch(scratch, 1)[0] = <uint8_t>number
        add_bytes(scratch, "attribute", value)
        if number < 63:
            tags |= <int64_t>1 << number
        count -= 1
    check_counted(count)
    return tags & scratch.noted_tags if scratch.noted_tags > 0 else 0


cdef int add_time(Scratch *scratch, str name, object value, int64_t value_ns) except -1:
    if value_ns < 0:
        raise InvalidInput(f"{name} {value} ns is not between 1970 and 2262")
    store_u64(take_scratch(scratch, 8), <uint64_t>value_ns)
    return 0


cdef bytes kept_copy(Scratch *scratch, object value):
    # Bytes that stay until the call is over, whatever becomes of the object they came from.
    cdef Py_buffer held
    cdef bytes copy
    PyObject_GetBuffer(value, &held, PyBUF_SIMPLE)
    try:
        copy = PyBytes_FromStringAndSize(<const char *>held.buf, held.len)
    finally:
        PyBuffer_Release(&held)
    if scratch.kept == NULL:
        kept = []
        Py_INCREF(kept)
        scratch.kept = <PyObject *>kept
    PyList_Append(<object>scratch.kept, copy)
    return copy


cdef inline void begin_piece(Piece *piece, uint8_t type) noexcept:
    # An entry without any option.
    piece.note = NULL
    piece.type = type
    piece.flags = 0
    piece.fields_at = 0
    piece.fields_bytes = 0


cdef inline int gather_payload(Piece *piece, Scratch *scratch, object payload) except -1:
    if not PyBytes_Check(payload):
        payload = kept_copy(scratch, payload)
    piece.payload = <const uint8_t *>PyBytes_AS_STRING(payload)
    piece.payload_bytes = PyBytes_GET_SIZE(payload)
    return 0


cdef int gather_draft(Piece *piece, Scratch *scratch, tuple draft) except -1:
    cdef object value
    cdef int64_t number
    cdef int64_t noted = 0
    cdef uint8_t flags = 0
    piece.note = NULL
    if PyTuple_GET_SIZE(draft) != DRAFT_FIELDS:
        raise TypeError("not a whole Draft")
    (
        payload,
        entry_type,
        priority,
        expires_at_ns,
        deliver_at_ns,
        key,
        headers,
        attributes,
        compression,
    ) = draft
    number = bounded(entry_type)
    if number != DATA and number != TOMBSTONE and not FIRST_EVENT <= number <= LAST_EVENT:
        raise InvalidInput(f"entry type {entry_type} cannot be written by a caller")
    piece.type = <uint8_t>number
    piece.fields_at = scratch.used
    number = bounded(expires_at_ns)
    if number != 0:
        flags |= HAS_EXPIRES_AT
        add_time(scratch, "expires_at", expires_at_ns, number)
    if headers is not None and headers:
        flags |= HAS_HEADERS
        add_headers(scratch, headers)
    number = bounded(compression)
    if number != 0:
        if not 0 < number <= 0xFF:
            raise InvalidInput(f"compression {compression} is not a codec number (1 to 255)")
        flags |= IS_COMPRESSED
        take_scratch(scratch, 1)[0] = <uint8_t>number
    number = bounded(priority)
    if number != DEFAULT_PRIORITY:
        if not 0 <= number <= MAX_PRIORITY:
            raise InvalidInput(f"priority {priority} is not between 0 and 9")
        flags |= HAS_PRIORITY
        take_scratch(scratch, 1)[0] = <uint8_t>number
    number = bounded(deliver_at_ns)
    if number != 0:
        flags |= HAS_DELIVER_AT
        add_time(scratch, "deliver_at", deliver_at_ns, number)
    if key is not None:
        flags |= HAS_KEY
        add_bytes(scratch, "key", key)
    if attributes is not None and attributes:
        flags |= HAS_ATTRIBUTES
        noted = add_attributes(scratch, attributes)
    piece.flags = flags
    piece.fields_bytes = scratch.used - piece.fields_at
    gather_payload(piece, scratch, payload)
    if (
        scratch.noted_tags >= 0
        and piece.type == DATA
        and (noted or flags & (HAS_PRIORITY | HAS_DELIVER_AT | HAS_KEY))
    ):  # last: the caller drops it
        piece.note = new_note(
            priority, deliver_at_ns, key, attributes if noted else None, expires_at_ns
        )
    return 0


cdef inline int gather(Piece *piece, Scratch *scratch, object item) except -1:
    # An item of a batch: a Draft, or the payload of a plain message.
    if not PyBytes_Check(item) and isinstance(item, DRAFT):
        return gather_draft(piece, scratch, <tuple>item)
    begin_piece(piece, DATA)
    return gather_payload(piece, scratch, item)


cdef inline Py_ssize_t piece_bytes(const Piece *piece) noexcept nogil:
    return ENTRY_OVERHEAD_BYTES + piece.fields_bytes + piece.payload_bytes


cdef inline uint32_t begin_entry(
    uint8_t *at, Py_ssize_t size, uint8_t type, uint8_t flags, int64_t seq, int64_t timestamp_ns
) noexcept nogil:
    # The fixed part without the length, which the caller stores last.
    at[4] = type
    at[5] = flags
    store_u64(at + 6, <uint64_t>seq)
    store_u64(at + 14, <uint64_t>timestamp_ns)
    return <uint32_t>(size - LENGTH_BYTES)


cdef inline void seal_entry(uint8_t *at, Py_ssize_t size, uint32_t length) noexcept nogil:
    # The checksum covers the length, which is not there yet.
    cdef uint8_t first[LENGTH_BYTES]
    cdef uint32_t state
    store_u32(first, length)
    state = crc32c_update(0xFFFFFFFF, first, LENGTH_BYTES)
    state = crc32c_update(state, at + LENGTH_BYTES, size - LENGTH_BYTES - CRC_BYTES)
    store_u32(at + size - CRC_BYTES, ~state)


cdef inline uint32_t write_piece(
    uint8_t *at, const Piece *piece, const uint8_t *fields, int64_t seq, int64_t timestamp_ns
) noexcept nogil:
    # Writes the whole entry but its length; returns the length.
    cdef Py_ssize_t size = piece_bytes(piece)
    cdef uint32_t length = begin_entry(at, size, piece.type, piece.flags, seq, timestamp_ns)
    cdef uint8_t *body = at + FIXED_BYTES
    if piece.fields_bytes:
        memcpy(body, fields + piece.fields_at, piece.fields_bytes)
        body += piece.fields_bytes
    memcpy(body, piece.payload, piece.payload_bytes)
    seal_entry(at, size, length)
    return length


cdef int refuse_batch_bytes(Py_ssize_t size) except -1:
    raise TooLarge(f"a batch of {size} bytes; the maximum is {MAX_BATCH_BYTES}")


def pack(seq, timestamp_ns, draft):
    """Return the bytes of one entry."""
    cdef Piece piece
    cdef Scratch scratch
    cdef int64_t checked = checked_seq(seq)
    cdef int64_t time_ns = checked_timestamp(timestamp_ns)
    cdef bytes entry
    cdef uint8_t *at
    if not isinstance(draft, DRAFT):
        raise TypeError("pack needs a Draft")
    begin_scratch(&scratch, -1)
    try:
        gather_draft(&piece, &scratch, <tuple>draft)
        if piece_bytes(&piece) > MAX_BATCH_BYTES:
            refuse_batch_bytes(piece_bytes(&piece))
        entry = PyBytes_FromStringAndSize(NULL, piece_bytes(&piece))
        at = <uint8_t *>PyBytes_AS_STRING(entry)
        store_u32(at, write_piece(at, &piece, scratch.data, checked, time_ns))
        return entry
    finally:
        end_scratch(&scratch)


# -- many payloads -----------------------------------------------------------------------------

# Safe because each pair of offsets is loaded once and compared with the data and the room that is
# left before a byte is copied.

cdef enum Refusal:
    NOTHING_REFUSED
    BAD_OFFSETS
    TOO_LARGE
    BAD_SEQ


cdef struct PayloadRun:
    const uint8_t *offsets
    int64_t rows
    const uint8_t *data
    int64_t data_bytes
    uint8_t *into
    int64_t room
    int64_t row  # the next to be written
    int64_t used
    int64_t seq  # of the next
    int64_t timestamp_ns
    int64_t max_entry_bytes


cdef Refusal write_run(PayloadRun *run) noexcept nogil:
    # Stops before the row that does not fit, and at one that is refused.
    cdef int64_t start
    cdef int64_t stop
    cdef int64_t size
    cdef uint8_t *at
    while run.row < run.rows:
        start = <int32_t>load_u32(run.offsets + 4 * run.row)
        stop = <int32_t>load_u32(run.offsets + 4 * run.row + 4)
        if not 0 <= start <= stop <= run.data_bytes:
            return BAD_OFFSETS
        size = ENTRY_OVERHEAD_BYTES + stop - start
        if size > run.max_entry_bytes:
            return TOO_LARGE
        if run.seq < 0:
            return BAD_SEQ
        if size > run.room - run.used:
            break
        at = run.into + run.used
        store_u32(at, begin_entry(at, size, DATA, 0, run.seq, run.timestamp_ns))
        memcpy(at + FIXED_BYTES, run.data + start, stop - start)
        store_u32(at + size - CRC_BYTES, crc32c_of(at, size - CRC_BYTES))
        run.used += size
        run.row += 1
        run.seq = run.seq + 1 if run.seq < MAX_SEQ else -1
    return NOTHING_REFUSED


def pack_payloads(
    into,
    offsets,
    data,
    int64_t row,
    *,
    seq,
    timestamp_ns,
    max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES,
):
    """Write plain messages from Arrow's buffers into a buffer."""
    cdef PayloadRun run
    cdef Refusal refusal
    cdef Py_buffer held
    cdef View places = view_of(offsets, 0, 0)
    cdef View payloads = view_of(data, 0, 0)
    run.offsets = places.data
    run.rows = max(places.buffer.len // 4 - 1, 0)
    run.data = payloads.data
    run.data_bytes = payloads.buffer.len
    run.row = row
    run.used = 0
    run.seq = checked_seq(seq)
    run.timestamp_ns = checked_timestamp(timestamp_ns)
    run.max_entry_bytes = checked_entry_limit(max_entry_bytes)
    if not 0 <= row <= run.rows:
        raise ValueError(f"there is no row {row} among {run.rows}")
    PyObject_GetBuffer(into, &held, PyBUF_WRITABLE)
    try:
        run.into = <uint8_t *>held.buf
        run.room = held.len
        if worth_a_release(0, held.len):
            with nogil:
                refusal = write_run(&run)
        else:
            refusal = write_run(&run)
    finally:
        PyBuffer_Release(&held)
    if refusal == BAD_OFFSETS:
        raise InvalidInput(f"the offsets of payload {run.row} are not inside the data")
    if refusal == TOO_LARGE:
        raise TooLarge(
            f"payload {run.row} makes an entry of more than {run.max_entry_bytes} bytes"
        )
    if refusal == BAD_SEQ:
        raise InvalidInput("no seq is left: the highest is 2^63 - 1")
    return run.row, run.used
