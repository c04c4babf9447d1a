# Passing over a run of entries. Safe without the interpreter lock because it touches no Python
# object: the buffer is held by a View, results are plain numbers and one malloc'd array.

cdef inline bint worth_a_release(int64_t start, int64_t end) noexcept:
    return end - start > GIL_BYTES


# -- seek ------------------------------------------------------------------------------------------

cdef Verdict seek_in(
    const uint8_t *data,
    int64_t end,
    uint64_t least_seq,  # as stored
    uint64_t least_timestamp_ns,
    int64_t max_entry_bytes,
    Head *head,  # offset: where to begin, and the answer
) noexcept nogil:
    cdef const uint8_t *at
    while end - head.offset >= FIXED_BYTES:
        at = data + head.offset
        head.length = load_u32(at)
        if head.length == 0:
            return ZEROS
        head.size = LENGTH_BYTES + <int64_t>head.length
        if (
            head.length < MIN_LENGTH
            or head.size > max_entry_bytes
            or head.size > end - head.offset
        ):
            return IMPOSSIBLE_LENGTH
        if (
            at[4] != CHECKPOINT
            and load_u64(at + 6) >= least_seq
            and load_u64(at + 14) >= least_timestamp_ns
        ):
            return GOOD
        head.offset += head.size
    return ZEROS


def seek(
    buffer,
    int64_t start,
    int64_t end,
    *,
    seq=0,
    timestamp_ns=0,
    seq_base=0,
    max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES,
):
    """Return the offset of the first entry at or after that seq and that time, or -1."""
    cdef int64_t least_seq = checked_seq(seq)
    cdef int64_t least_ns = checked_timestamp(timestamp_ns)
    cdef int64_t base = checked_seq(seq_base)
    cdef int64_t limit = checked_entry_limit(max_entry_bytes)
    cdef View view = view_of(buffer, start, end)
    cdef Head head
    cdef Verdict verdict
    least_seq = least_seq - base if least_seq > base else 0
    head.offset = start
    if worth_a_release(start, end):
        with nogil:
            verdict = seek_in(view.data, end, least_seq, least_ns, limit, &head)
    else:
        verdict = seek_in(view.data, end, least_seq, least_ns, limit, &head)
    if verdict == IMPOSSIBLE_LENGTH:
        raise bad_entry(verdict, &head, NULL, limit)
    return head.offset if verdict == GOOD else -1


# -- skim ------------------------------------------------------------------------------------------

cdef struct Counts:
    int64_t end
    int64_t entries
    uint64_t next_seq
    uint64_t last_timestamp_ns
    uint64_t synced_upto
    int64_t points


cdef struct Tally:
    Counts all
    Counts whole  # as they were at the end of the last whole batch
    int64_t seq_base
    int64_t max_entry_bytes
    int64_t index_from
    bint whole_batches
    int64_t frame_end  # of the batch that is being read
    uint32_t frame_left  # entries of it still to come
    uint8_t *points
    int64_t points_room


cdef bint add_point(Tally *tally, const Head *head) noexcept nogil:
    cdef int64_t room
    cdef uint8_t *bigger
    cdef uint8_t *at
    if tally.all.points == tally.points_room:
        room = 2 * tally.points_room + 64
        bigger = <uint8_t *>realloc(tally.points, room * INDEX_POINT_BYTES)
        if bigger == NULL:
            return False
        tally.points = bigger
        tally.points_room = room
    at = tally.points + tally.all.points * INDEX_POINT_BYTES
    store_u64(at, head.seq + <uint64_t>tally.seq_base)
    store_u64(at + 8, head.timestamp_ns)
    store_u64(at + 16, <uint64_t>head.offset)
    tally.all.points += 1
    tally.index_from = head.offset + INDEX_STEP_BYTES
    return True


cdef Verdict add_checkpoint(Tally *tally, const uint8_t *at, const Head *head) noexcept nogil:
    cdef uint64_t promise
    cdef uint32_t count
    cdef uint32_t frame_bytes
    if head.size != CHECKPOINT_BYTES or head.flags:
        return CHECKPOINT_SIZE
    promise = load_u64(at + FIXED_BYTES)
    count = load_u32(at + FIXED_BYTES + 8)
    frame_bytes = load_u32(at + FIXED_BYTES + 12)
    if tally.frame_left:
        return INSIDE_BATCH
    if frame_bytes and not count:
        return EMPTY_FRAME
    if promise > <uint64_t>head.offset:
        return PROMISES_TOO_MUCH
    if promise > tally.all.synced_upto:
        tally.all.synced_upto = promise
    if tally.whole_batches:
        tally.frame_left = count
        tally.frame_end = head.offset + head.size + <int64_t>frame_bytes
    return GOOD


cdef Verdict add_entry(Tally *tally, const uint8_t *at, const Head *head) noexcept nogil:
    cdef uint64_t last_seq = head.seq
    cdef int64_t end = head.offset + head.size
    if head.type == TOMBSTONE:
        if head.size != ENTRY_OVERHEAD_BYTES + 8 or head.flags:
            return TOMBSTONE_SIZE
        last_seq = max(last_seq, load_u64(at + FIXED_BYTES))
        if last_seq > <uint64_t>(MAX_SEQ - tally.seq_base):
            return SEQ_TOO_HIGH
    if tally.frame_left:
        if end > tally.frame_end or (tally.frame_left == 1) != (end == tally.frame_end):
            return NOT_FILLED
        tally.frame_left -= 1
    if 0 <= tally.index_from <= head.offset and not add_point(tally, head):
        return NO_MEMORY
    tally.all.entries += 1
    last_seq += <uint64_t>tally.seq_base + 1
    if last_seq > tally.all.next_seq:
        tally.all.next_seq = last_seq
    return GOOD


cdef Verdict skim_in(
    const uint8_t *data, int64_t start, int64_t end, Tally *tally, Head *head
) noexcept nogil:
    cdef Verdict verdict
    head.offset = start
    while head.offset < end:
        verdict = read_head(
            data, head.offset, end, tally.seq_base, tally.max_entry_bytes, head
        )
        if verdict != GOOD:
            return verdict
        if head.type == CHECKPOINT:
            verdict = add_checkpoint(tally, data + head.offset, head)
        else:
            verdict = add_entry(tally, data + head.offset, head)
        if verdict != GOOD:
            return verdict
        if head.timestamp_ns > tally.all.last_timestamp_ns:
            tally.all.last_timestamp_ns = head.timestamp_ns
        head.offset += head.size
        if tally.frame_left == 0:
            tally.all.end = head.offset
            tally.whole = tally.all
    return ZEROS


def skim(
    buffer,
    int64_t start,
    int64_t end,
    *,
    bint whole_batches=True,
    int64_t index_from=-1,
    seq_base=0,
    max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES,
):
    """Verify every checksum from `start` on and return how far the bytes are good."""
    cdef Tally tally
    cdef Head head
    cdef Verdict verdict
    cdef View view
    cdef object problem = None
    memset(&tally, 0, sizeof(Tally))
    tally.seq_base = checked_seq(seq_base)
    tally.max_entry_bytes = checked_entry_limit(max_entry_bytes)
    tally.index_from = index_from
    tally.whole_batches = whole_batches
    tally.all.end = tally.whole.end = start
    view = view_of(buffer, start, end)
    try:
        if worth_a_release(start, end):
            with nogil:
                verdict = skim_in(view.data, start, end, &tally, &head)
        else:
            verdict = skim_in(view.data, start, end, &tally, &head)
        if verdict == NO_MEMORY:
            raise MemoryError()
        if verdict != ZEROS:
            problem = reason_of(verdict, &head, NULL, tally.max_entry_bytes)
        elif tally.frame_left:
            problem = "a batch that was not written to its end"
        return Skim(
            tally.whole.end,
            head.offset,
            tally.whole.entries,
            tally.whole.next_seq,
            tally.whole.last_timestamp_ns,
            tally.whole.synced_upto,
            problem,
            is_newer(verdict),
            PyBytes_FromStringAndSize(
                <const char *>tally.points, tally.whole.points * INDEX_POINT_BYTES
            ),
        )
    finally:
        free(tally.points)


# -- zeros -----------------------------------------------------------------------------------------

cdef int64_t first_nonzero_in(const uint8_t *data, int64_t start, int64_t end) noexcept nogil:
    while end - start >= 8 and load_u64(data + start) == 0:
        start += 8
    while start < end and data[start] == 0:
        start += 1
    return start if start < end else -1


def first_nonzero(buffer, int64_t start, int64_t end):
    """Return the offset of the first byte that is not zero, or -1."""
    cdef View view = view_of(buffer, start, end)
    cdef int64_t found
    if worth_a_release(start, end):
        with nogil:
            found = first_nonzero_in(view.data, start, end)
    else:
        found = first_nonzero_in(view.data, start, end)
    return found


# -- resync ------------------------------------------------------------------------------------

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
    """Return the offset of the first valid entry at or after `start`, or -1."""
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


# -- restamp -----------------------------------------------------------------------------------

# Safe because an entry is verified by read_head, which keeps to the range, before a byte of it is
# changed, and its size stays the same.

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
    """Change the time of every entry of a range in place."""
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
