# Another time for entries that lie in a buffer. Safe because an entry is verified by read_head, which
# keeps to the range, before a byte of it is changed, and its size stays as it is.

cdef Verdict restamp_in(
    uint8_t *data, int64_t end, uint64_t timestamp_ns, int64_t max_entry_bytes, Head *head
) noexcept nogil:
    cdef Verdict verdict
    cdef uint8_t *at
    while head.offset < end:
        verdict = read_head(data, head.offset, end, 0, max_entry_bytes, head)
        if verdict != GOOD:
            return verdict
        at = data + head.offset
        store_u64(at + FIXED_BYTES - 8, timestamp_ns)
        store_u32(at + head.size - CRC_BYTES, crc32c_of(at, head.size - CRC_BYTES))
        head.offset += head.size
    return GOOD


def restamp(
    into,
    int64_t start,
    int64_t end,
    timestamp_ns,
    *,
    max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES,
):
    """Entries that are there get another time; see the twin in restamp_py.py."""
    cdef int64_t stamp = checked_timestamp(timestamp_ns)
    cdef int64_t limit = checked_entry_limit(max_entry_bytes)
    cdef Head head
    cdef Verdict verdict
    cdef Py_buffer held
    head.offset = start
    PyObject_GetBuffer(into, &held, PyBUF_WRITABLE)
    try:
        if not 0 <= start <= end <= held.len:
            raise ValueError(
                f"range {start}..{end} is not inside a buffer of {held.len} bytes"
            )
        if worth_a_release(start, end):
            with nogil:
                verdict = restamp_in(<uint8_t *>held.buf, end, <uint64_t>stamp, limit, &head)
        else:
            verdict = restamp_in(<uint8_t *>held.buf, end, <uint64_t>stamp, limit, &head)
    finally:
        PyBuffer_Release(&held)
    if verdict != GOOD:
        raise bad_entry(verdict, &head, NULL, limit)
