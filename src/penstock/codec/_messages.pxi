# Message ids, and messages straight from their bytes. `parse_id` stays in Python: it is rarely called.

cdef const char *ID_ALPHABET = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
cdef int64_t MAX_ID_SEQ = (<int64_t>1 << 48) - 1

# Two letters for each ten bits, as an id has thirteen pairs of them.
cdef char ID_PAIRS[2048]
for _pair in range(1024):
    ID_PAIRS[2 * _pair] = ID_ALPHABET[_pair >> 5]
    ID_PAIRS[2 * _pair + 1] = ID_ALPHABET[_pair & 31]


cdef object id_text(uint64_t milliseconds, uint32_t identity, uint64_t seq):
    # 128 bits as two halves, written from the last pair to the first.
    cdef char text[26]
    cdef uint64_t high = (milliseconds & <uint64_t>0xFFFFFFFFFFFF) << 16 | identity >> 16
    cdef uint64_t low = (<uint64_t>(identity & 0xFFFF)) << 48 | seq
    cdef int at
    for at in range(24, -1, -2):
        memcpy(text + at, ID_PAIRS + 2 * (low & 1023), 2)
        low = low >> 10 | (high & 1023) << 54
        high >>= 10
    return PyUnicode_DecodeASCII(text, 26, NULL)


def make_id(timestamp_ns, identity, seq):
    """Return the id of a message."""
    cdef int64_t number = bounded(seq)
    if not 0 <= number <= MAX_ID_SEQ:
        raise InvalidInput(f"seq {seq} does not fit into an id")
    return id_text(
        <uint64_t>(<int64_t>timestamp_ns // 1000000), <uint32_t>(<uint64_t>identity), number
    )


def make_ids(timestamp_ns, identity, first_seq, Py_ssize_t count):
    """Return the ids of messages that were written together."""
    cdef int64_t first = bounded(first_seq)
    cdef Py_ssize_t number
    cdef uint64_t milliseconds = <uint64_t>(<int64_t>timestamp_ns // 1000000)
    cdef uint32_t who = <uint32_t>(<uint64_t>identity)
    if count > 0 and not 0 <= first <= MAX_ID_SEQ - (count - 1):
        if first < 0 or first > MAX_ID_SEQ:
            raise InvalidInput(f"seq {first_seq} does not fit into an id")
        raise InvalidInput(f"seq {MAX_ID_SEQ + 1} does not fit into an id")
    return [id_text(milliseconds, who, first + number) for number in range(count)]


# -- messages ----------------------------------------------------------------------------------

# Safe for the same reasons as building entries in `_unpack.pxi`.

cdef enum:
    MESSAGE_FIELDS = 11
    AFFECTS_ORDER = HAS_PRIORITY | HAS_DELIVER_AT | HAS_KEY

if len(Message._fields) != MESSAGE_FIELDS:
    raise ImportError("the compiled codec was built for other messages; build it again")


cdef struct PlainAttributes:
    int64_t content_type_at
    int64_t content_type_bytes
    uint64_t max_attempts
    bint has_tenant


cdef bint read_plain_attributes(
    const uint8_t *data, const Head *head, const Fields *fields, PlainAttributes *found
) noexcept nogil:
    # Whether it has only attributes that do not affect how it is read: content type, max_attempts
    # and tenant.
    cdef const uint8_t *entry = data + head.offset
    cdef int64_t at = fields.attributes_at
    cdef int64_t start, after
    cdef int number, byte
    found.content_type_at = found.content_type_bytes = 0
    found.max_attempts = 0
    found.has_tenant = False
    for number in range(fields.attributes):
        start = at + 3
        after = after_sized(entry, at + 1, head.size - CRC_BYTES)
        if after < 0:
            return False
        if entry[at] == CONTENT_TYPE_TAG:
            found.content_type_at = start
            found.content_type_bytes = after - start
        elif entry[at] == MAX_ATTEMPTS_TAG and after - start <= 4:
            found.max_attempts = 0
            for byte in range(<int>(after - start)):
                found.max_attempts |= <uint64_t>entry[start + byte] << (8 * byte)
        elif entry[at] == TENANT_TAG:
            found.has_tenant = True
        else:
            return False
        at = after
    return found.content_type_at == 0 or is_utf8(
        entry + found.content_type_at, found.content_type_bytes
    )


cdef object message_of(
    const uint8_t *data,
    const Head *head,
    const Fields *fields,
    const PlainAttributes *attributes,
    int64_t seq,
    uint32_t identity,
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
    cdef object deliver_at_ns = fields.deliver_at_ns
    cdef object key = None
    cdef object expires_at_ns = fields.expires_at_ns
    cdef object max_attempts = attributes.max_attempts
    cdef tuple message
    if fields.headers:
        headers = headers_of(at, head, fields)
    if head.flags & HAS_KEY:
        key = PyUnicode_DecodeUTF8(<char *>at + fields.key_at, fields.key_bytes, NULL)
    if attributes.content_type_at:
        content_type = PyUnicode_DecodeUTF8(
            <char *>at + attributes.content_type_at, attributes.content_type_bytes, NULL
        )
    if not TUPLE_IS_ITEMS:
        return tuple.__new__(
            Message,
            (
                id_, number, payload, priority, timestamp_ns, deliver_at_ns, expires_at_ns, key,
                headers, content_type, max_attempts,
            ),
        )
    message = penstock_new_tuple(Message, MESSAGE_FIELDS)
    put(message, 0, id_)
    put(message, 1, number)
    put(message, 2, payload)
    put(message, 3, priority)
    put(message, 4, timestamp_ns)
    put(message, 5, deliver_at_ns)
    put(message, 6, expires_at_ns)
    put(message, 7, key)
    put(message, 8, headers)
    put(message, 9, content_type)
    put(message, 10, max_attempts)
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
    wanted=None,
    seq_base=0,
    max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES,
):
    """Return messages from `start` on, and the offset after them."""
    cdef int64_t base = checked_seq(seq_base)
    cdef int64_t limit = checked_entry_limit(max_entry_bytes)
    cdef uint32_t who = <uint32_t>(<uint64_t>identity)
    cdef View view = view_of(buffer, start, end)
    cdef list messages = []
    cdef list seqs = [] if wanted is None else [checked_seq(each) for each in wanted]
    cdef Py_ssize_t nth = 0
    cdef int64_t count = 0
    cdef int64_t offset = start
    cdef int64_t seq
    cdef Head head
    cdef Fields fields
    cdef PlainAttributes attributes
    if wanted is not None:
        max_count = min(max_count, len(seqs))
    while count < max_count and offset < end:
        if read_entry(view.data, offset, end, base, limit, &head, &fields) != GOOD:
            break
        if count and offset + head.size - start > max_bytes:
            break
        if head.type != CHECKPOINT:
            seq = base + <int64_t>head.seq
            if wanted is not None:
                while nth < len(seqs) and <int64_t>seqs[nth] < seq:
                    nth += 1
                if nth == len(seqs):
                    break
                if <int64_t>seqs[nth] > seq:
                    offset += head.size
                    continue
            if head.type != DATA or head.flags & IS_COMPRESSED or seq > MAX_ID_SEQ:
                break
            if head.flags & HAS_KEY and not is_utf8(
                view.data + offset + fields.key_at, fields.key_bytes
            ):
                break
            if not read_plain_attributes(view.data, &head, &fields, &attributes):
                break
            PyList_Append(messages, message_of(view.data, &head, &fields, &attributes, seq, who))
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
    cdef PlainAttributes attributes
    cdef int64_t seq
    while run.offset < end:
        if read_entry(data, run.offset, end, seq_base, max_entry_bytes, &head, &fields) != GOOD:
            return
        if head.type != CHECKPOINT:
            seq = seq_base + <int64_t>head.seq
            if head.type != DATA or head.flags & AFFECTS_ORDER or seq >= end_seq:
                return
            if (
                not read_plain_attributes(data, &head, &fields, &attributes)
                or attributes.has_tenant
            ):
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
    """Skip a run of plain messages; return (first seq, end seq, offset after them)."""
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
