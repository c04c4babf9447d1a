# Finding the next entry behind damage. Bytes can be made in which every offset looks like a long
# entry; checking each would cost the square of their number. So the checksum of a long candidate is
# put together from the states of one running checksum, kept each STRIDE_BYTES: it then costs the
# same for any length. Safe because a candidate's length is compared with the range first, and the
# states are allocated by the range, not by what is in it.

cdef enum:
    STRIDE_BYTES = 512
    SHORT_BYTES = 1024  # checked directly


cdef struct Running:
    const uint8_t *data
    int64_t start
    int64_t known  # states so far
    uint32_t *states  # states[k]: after the bytes from start to start + k * STRIDE_BYTES


cdef uint32_t running_at(Running *running, int64_t offset) noexcept nogil:
    cdef int64_t number = (offset - running.start) // STRIDE_BYTES
    cdef int64_t last
    while running.known <= number:
        last = running.known - 1
        running.states[running.known] = crc32c_update(
            running.states[last],
            running.data + running.start + last * STRIDE_BYTES,
            STRIDE_BYTES,
        )
        running.known += 1
    last = running.start + number * STRIDE_BYTES
    return crc32c_update(running.states[number], running.data + last, offset - last)


cdef Verdict begin_running(
    Running *running, const uint8_t *data, int64_t start, int64_t end
) noexcept nogil:
    running.data = data
    running.start = start
    running.known = 1
    running.states = <uint32_t *>malloc(
        ((end - start) // STRIDE_BYTES + 1) * sizeof(uint32_t)
    )
    if running.states == NULL:
        return NO_MEMORY
    running.states[0] = 0
    return GOOD


cdef inline bint checksum_is_right(Running *running, int64_t offset, int64_t size) noexcept nogil:
    cdef int64_t covered = size - CRC_BYTES
    cdef uint32_t before = running_at(running, offset)
    cdef uint32_t after = running_at(running, offset + covered)
    cdef uint32_t state = after ^ crc32c_shift(before ^ <uint32_t>0xFFFFFFFF, covered)
    return <uint32_t>~state == load_u32(running.data + offset + covered)


cdef Verdict resync_in(
    const uint8_t *data,
    int64_t end,
    uint64_t min_seq,
    uint64_t max_seq,
    uint64_t min_timestamp_ns,
    int64_t max_entry_bytes,
    Running *running,
    Head *head,  # offset: where to begin, and the answer
) noexcept nogil:
    cdef int64_t offset
    cdef int64_t size
    cdef uint64_t number
    cdef const uint8_t *at
    cdef uint8_t kind
    for offset in range(head.offset, end - ENTRY_OVERHEAD_BYTES + 1):
        at = data + offset
        size = LENGTH_BYTES + <int64_t>load_u32(at)
        if size < ENTRY_OVERHEAD_BYTES or size > max_entry_bytes or size > end - offset:
            continue
        kind = at[4]
        if kind < FIRST_EVENT and not DATA <= kind <= CHECKPOINT or at[5] & RESERVED_FLAG:
            continue
        number = load_u64(at + 6)
        if number < min_seq or number > max_seq:
            continue
        number = load_u64(at + 14)
        if number < min_timestamp_ns or number > <uint64_t>MAX_TIMESTAMP_NS:
            continue
        if size <= SHORT_BYTES:
            if crc32c_of(at, size - CRC_BYTES) != load_u32(at + size - CRC_BYTES):
                continue
        else:
            if running.states == NULL and begin_running(running, data, offset, end) != GOOD:
                return NO_MEMORY
            if not checksum_is_right(running, offset, size):
                continue
        head.offset = offset
        return GOOD
    return ZEROS


def resync(
    buffer,
    int64_t start,
    int64_t end,
    *,
    min_seq,
    max_seq,
    min_timestamp_ns=0,
    max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES,
):
    """The offset of the first valid entry at or after `start`, -1 if there is none.

    Tries every byte. The bounds on seq and time (as stored) make it cheap to pass over garbage,
    and keep bytes inside a payload from being taken for an entry.
    """
    cdef int64_t limit = checked_entry_limit(max_entry_bytes)
    cdef uint64_t least_seq = min(max(min_seq, 0), MAX_SEQ + <uint64_t>1)
    cdef uint64_t most_seq = min(max(max_seq, 0), MAX_SEQ)
    cdef uint64_t least_ns = min(max(min_timestamp_ns, 0), MAX_TIMESTAMP_NS + <uint64_t>1)
    cdef View view = view_of(buffer, start, end)
    cdef Running running
    cdef Head head
    cdef Verdict verdict
    if max_seq < 0:
        return -1
    running.states = NULL
    head.offset = start
    try:
        if worth_a_release(start, end):
            with nogil:
                verdict = resync_in(
                    view.data, end, least_seq, most_seq, least_ns, limit, &running, &head
                )
        else:
            verdict = resync_in(
                view.data, end, least_seq, most_seq, least_ns, limit, &running, &head
            )
    finally:
        free(running.states)
    if verdict == NO_MEMORY:
        raise MemoryError()
    return head.offset if verdict == GOOD else -1
