# Entries as Python objects. Safe because only what `_verify.pxi` found good is built, and an Entry
# is filled before anyone can see it. The interpreter lock is held throughout.

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
    """The entry at `offset`; raises BadEntry where there is none."""
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
    """Entries from `start`, checkpoints left out, and the offset to go on from.

    Stops at `max_count`, at the end, at zeros, before all but the first would go over `max_bytes`,
    and before a bad entry; only if that is the very first thing found is BadEntry raised.
    """
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
