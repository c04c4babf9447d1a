# Messages straight from their bytes. Safe for the reasons of `_unpack.pxi`: only what was verified
# is built, and a Message is filled before anyone can see it.

cdef enum:
    MESSAGE_FIELDS = 11
    NEEDS_THE_STATE = HAS_PRIORITY | HAS_DELIVER_AT | HAS_KEY
    NEEDS_A_LOOK = NEEDS_THE_STATE | HAS_EXPIRES_AT | IS_COMPRESSED

if len(Message._fields) != MESSAGE_FIELDS:
    raise ImportError("the compiled codec was built for other messages; build it again")


cdef bint has_only_content_type(
    const uint8_t *data, const Head *head, const Fields *fields
) noexcept nogil:
    # As its attributes, if it has any: it changes nothing about the delivery.
    cdef const uint8_t *at = data + head.offset
    if fields.attributes == 0:
        return True
    return (
        fields.attributes == 1
        and at[fields.attributes_at] == CONTENT_TYPE_TAG
        and is_utf8(
            at + fields.attributes_at + 3, fields.payload_at - fields.attributes_at - 3
        )
    )


cdef object content_type_of(const uint8_t *entry, const Head *head, const Fields *fields):
    cdef int64_t at = fields.attributes_at + 1
    return next_sized(entry, head, &at, True)


cdef object message_of(
    const uint8_t *data, const Head *head, const Fields *fields, int64_t seq, uint32_t identity
):
    cdef const uint8_t *at = data + head.offset
    cdef object id_ = id_text(head.timestamp_ns // 1000000, identity, seq)
    cdef object number = seq
    cdef object timestamp_ns = <int64_t>head.timestamp_ns
    cdef object payload = PyBytes_FromStringAndSize(
        <const char *>at + fields.payload_at, fields.payload_bytes
    )
    cdef object headers = NO_HEADERS
    cdef object content_type = None
    cdef object priority = fields.priority
    cdef tuple message
    if fields.headers:
        headers = headers_of(at, head, fields)
    if fields.attributes:
        content_type = content_type_of(at, head, fields)
    if not TUPLE_IS_ITEMS:
        return tuple.__new__(
            Message,
            (id_, number, payload, priority, timestamp_ns, 0, 0, None, headers, content_type, 0),
        )
    message = penstock_new_tuple(Message, MESSAGE_FIELDS)
    put(message, 0, id_)
    put(message, 1, number)
    put(message, 2, payload)
    put(message, 3, priority)
    put(message, 4, timestamp_ns)
    put(message, 5, 0)
    put(message, 6, 0)
    put(message, 7, None)
    put(message, 8, headers)
    put(message, 9, content_type)
    put(message, 10, 0)
    if not fields.headers:
        PyObject_GC_UnTrack(message)  # nothing in it can be part of a cycle
    return message


def read_messages(
    buffer,
    int64_t start,
    int64_t end,
    *,
    int64_t max_count,
    identity,
    int64_t max_bytes=(1 << 62),
    seq_base=0,
    max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES,
):
    """Messages from `start`, checkpoints left out, and the offset to go on from.

    Stops at `max_count`, at the end, at zeros, before anything else than a good message whose only
    options are its headers and content type, and before all but the first would go over
    `max_bytes`.
    """
    cdef int64_t base = checked_seq(seq_base)
    cdef int64_t limit = checked_entry_limit(max_entry_bytes)
    cdef uint32_t who = <uint32_t>(<uint64_t>identity)
    cdef View view = view_of(buffer, start, end)
    cdef list messages = []
    cdef int64_t count = 0
    cdef int64_t offset = start
    cdef int64_t seq
    cdef Head head
    cdef Fields fields
    while count < max_count and offset < end:
        if read_entry(view.data, offset, end, base, limit, &head, &fields) != GOOD:
            break
        if count and offset + head.size - start > max_bytes:
            break
        if head.type != CHECKPOINT:
            seq = base + <int64_t>head.seq
            if head.type != DATA or head.flags & NEEDS_A_LOOK or seq > MAX_ID_SEQ:
                break
            if not has_only_content_type(view.data, &head, &fields):
                break
            PyList_Append(messages, message_of(view.data, &head, &fields, seq, who))
            count += 1
        offset += head.size
    return messages, offset


cdef struct Run:
    int64_t first_seq
    int64_t end_seq
    int64_t offset


cdef void skip_plain_in(
    const uint8_t *data,
    int64_t end,
    int64_t end_seq,
    int64_t seq_base,
    int64_t max_entry_bytes,
    Run *run,
) noexcept nogil:
    cdef Head head
    cdef Fields fields
    cdef int64_t seq
    while run.offset < end:
        if read_entry(data, run.offset, end, seq_base, max_entry_bytes, &head, &fields) != GOOD:
            return
        if head.type != CHECKPOINT:
            seq = seq_base + <int64_t>head.seq
            if head.type != DATA or head.flags & NEEDS_THE_STATE or seq >= end_seq:
                return
            if not has_only_content_type(data, &head, &fields):
                return
            if run.first_seq == run.end_seq:
                run.first_seq = seq
            elif seq != run.end_seq:
                return
            run.end_seq = seq + 1
        run.offset += head.size


def skip_plain(
    buffer,
    int64_t start,
    int64_t end,
    *,
    end_seq,
    seq_base=0,
    max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES,
):
    """Pass over plain messages in a row: (first seq, seq after the last, offset after the last).

    Plain: good, of the default priority, due at once, without key and with no attribute but a
    content type. Stops before anything else, and before `end_seq`.
    """
    cdef Run run
    cdef int64_t base = checked_seq(seq_base)
    cdef int64_t stop_seq = checked_seq(end_seq)
    cdef int64_t limit = checked_entry_limit(max_entry_bytes)
    cdef View view = view_of(buffer, start, end)
    run.first_seq = run.end_seq = 0
    run.offset = start
    if worth_a_release(start, end):
        with nogil:
            skip_plain_in(view.data, end, stop_seq, base, limit, &run)
    else:
        skip_plain_in(view.data, end, stop_seq, base, limit, &run)
    return run.first_seq, run.end_seq, run.offset
