# Many plain messages at once, from payloads that lie side by side. Safe because each pair of offsets
# is loaded once and compared with the data and with the room that is left before a byte is copied.

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
    """Plain messages from Arrow's buffers into another; see the twin in payloads_py.py."""
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
