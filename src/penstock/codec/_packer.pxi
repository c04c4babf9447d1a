# Appending. Safe between threads: from the first check of the packer's numbers to the last byte, no
# Python code runs and the interpreter lock is not released. Items are gathered before that. Safe in
# memory: position and limit can only be set inside the buffer.


# Not seen by the garbage collector, which would clear a memoryview in a cycle while a packer holds
# its buffer. Notes refer to no packer.
@cython.no_gc
cdef class Packer:
    """Writes entries one after another into a buffer; see `packer_py.py`."""

    cdef Py_buffer _buffer
    cdef bint _held
    cdef uint8_t *_data
    cdef int64_t _position
    cdef int64_t _limit
    cdef int64_t _max_entry_bytes
    cdef int64_t _synced_upto
    cdef int64_t _next_seq
    cdef Notes _notes
    cdef public long long last_timestamp_ns
    cdef public long long seq_limit  # entries at or above it are refused with -1
    cdef public long long time_limit_ns  # entries after it are refused with -1

    def __cinit__(
        self,
        buffer,
        *,
        int64_t position,
        int64_t limit,
        next_seq,
        long long last_timestamp_ns=0,
        max_entry_bytes=DEFAULT_MAX_ENTRY_BYTES,
    ):
        PyObject_GetBuffer(buffer, &self._buffer, PyBUF_WRITABLE)
        self._held = True
        self._data = <uint8_t *>self._buffer.buf
        if not 0 <= position <= limit <= self._buffer.len:
            raise ValueError("position and limit must lie inside the buffer")
        self._next_seq = checked_seq(next_seq)
        self._max_entry_bytes = checked_entry_limit(max_entry_bytes)
        self._position = position
        self._limit = limit
        self.last_timestamp_ns = last_timestamp_ns
        self.seq_limit = MAX_SEQ
        self.time_limit_ns = MAX_TIMESTAMP_NS
        self._synced_upto = -1

    def __dealloc__(self):
        if self._held:
            PyBuffer_Release(&self._buffer)

    @property
    def position(self):
        """Where the next entry goes."""
        return self._position

    @position.setter
    def position(self, int64_t position):
        self._check_inside(position)
        self._position = position

    @property
    def limit(self):
        """Nothing is written at or after it."""
        return self._limit

    @limit.setter
    def limit(self, int64_t limit):
        self._check_inside(limit)
        self._limit = limit

    @property
    def next_seq(self):
        """The seq that the next entry gets."""
        return self._next_seq

    @next_seq.setter
    def next_seq(self, seq):
        self._next_seq = checked_seq(seq)
        if self._notes is not None:
            self._notes.upto = self._next_seq

    @property
    def notes(self):
        """Where messages with options are noted, if anywhere."""
        return self._notes

    @notes.setter
    def notes(self, Notes notes):
        self._notes = notes
        if notes is not None:
            notes.upto = self._next_seq

    cdef int _check_inside(self, int64_t offset) except -1:
        if not 0 <= offset <= (self._buffer.len if self._held else 0):
            raise ValueError("position and limit must lie inside the buffer")
        return 0

    def append(self, payload, timestamp_ns):
        """Write a plain message (no options)."""
        cdef int64_t stored_ns
        return self._append(payload, timestamp_ns, &stored_ns)

    def append_batch(self, items, timestamp_ns):
        """Write entries that belong together, in a frame if there are several."""
        cdef int64_t stored_ns
        return self._append_batch(items, timestamp_ns, &stored_ns)

    def append_batch_stamped(self, items, timestamp_ns):
        """Write as `append_batch` does; return (first seq, timestamp as stored), or None for -1."""
        cdef int64_t stored_ns
        cdef int64_t seq = self._append_batch(items, timestamp_ns, &stored_ns)
        return None if seq < 0 else (seq, stored_ns)

    def append_event(self, type_, body, timestamp_ns):
        """Write an event: an entry of its type without any option."""
        cdef int64_t stored_ns
        cdef int64_t time_ns = checked_timestamp(timestamp_ns)
        cdef int64_t number = bounded(type_)
        cdef Piece piece
        if not (FIRST_EVENT <= number <= LAST_EVENT and PyBytes_Check(body)):
            return self._append_draft(Draft(body, type_), timestamp_ns, &stored_ns)
        begin_piece(&piece, <uint8_t>number)
        piece.payload = <const uint8_t *>PyBytes_AS_STRING(body)
        piece.payload_bytes = PyBytes_GET_SIZE(body)
        return self._place_one(&piece, NULL, time_ns, &stored_ns)

    def append_event_of_one(self, type_, group, attempt, seq, timestamp_ns):
        """Write an event that holds only group, attempt and the seq of one message."""
        cdef uint8_t body[EVENT_OF_ONE_BYTES]
        cdef int64_t stored_ns
        cdef int64_t time_ns = checked_timestamp(timestamp_ns)
        cdef int64_t number = bounded(type_)
        cdef Piece piece
        store_u16(body, checked_u16(group))
        store_u16(body + 2, checked_u16(attempt))
        store_u16(body + 4, 1)
        store_u64(body + 6, checked_seq(seq))
        store_u32(body + 14, 1)
        if not FIRST_EVENT <= number <= LAST_EVENT:
            event = Draft(PyBytes_FromStringAndSize(<char *>body, EVENT_OF_ONE_BYTES), type_)
            return self._append_draft(event, timestamp_ns, &stored_ns)
        begin_piece(&piece, <uint8_t>number)
        piece.payload = body
        piece.payload_bytes = EVENT_OF_ONE_BYTES
        return self._place_one(&piece, NULL, time_ns, &stored_ns)

    def append_identified(self, item, timestamp_ns, identity):
        """Write a message, plain or a draft; return its id, or None for -1."""
        cdef int64_t stored_ns
        cdef uint32_t who = <uint32_t>(<uint64_t>identity)
        cdef int64_t seq = self._next_seq
        if seq > MAX_ID_SEQ:
            raise InvalidInput(f"seq {seq} does not fit into an id")
        if PyBytes_Check(item) or not isinstance(item, DRAFT):
            seq = self._append(item, timestamp_ns, &stored_ns)
        else:
            seq = self._append_draft(item, timestamp_ns, &stored_ns)
        return None if seq < 0 else id_text(stored_ns // 1000000, who, seq)

    # `stored_ns` becomes the timestamp as stored. Read from the packer after the call it could be
    # that of another thread, since releasing an item can run Python code.

    @cython.final
    cdef int64_t _append(self, object payload, object timestamp_ns, int64_t *stored_ns) except -2:
        cdef Py_buffer held
        cdef int64_t time_ns = checked_timestamp(timestamp_ns)
        cdef Piece piece
        begin_piece(&piece, DATA)
        if PyBytes_Check(payload):
            piece.payload = <const uint8_t *>PyBytes_AS_STRING(payload)
            piece.payload_bytes = PyBytes_GET_SIZE(payload)
            return self._place_one(&piece, NULL, time_ns, stored_ns)
        PyObject_GetBuffer(payload, &held, PyBUF_SIMPLE)
        try:
            piece.payload = <const uint8_t *>held.buf
            piece.payload_bytes = held.len
            return self._place_one(&piece, NULL, time_ns, stored_ns)
        finally:
            PyBuffer_Release(&held)

    @cython.final
    cdef int64_t _append_draft(
        self, object draft, object timestamp_ns, int64_t *stored_ns
    ) except -2:
        cdef Piece piece
        cdef Scratch scratch
        cdef int64_t time_ns = checked_timestamp(timestamp_ns)
        begin_scratch(&scratch, self._noted_tags())
        piece.note = NULL
        try:
            gather(&piece, &scratch, draft)
            return self._place_one(&piece, scratch.data, time_ns, stored_ns)
        finally:
            end_scratch(&scratch)
            Py_XDECREF(piece.note)

    @cython.final
    cdef int64_t _append_batch(
        self, object items, object timestamp_ns, int64_t *stored_ns
    ) except -2:
        cdef tuple held = tuple(items)  # keeps the items, whatever happens to the caller's list
        cdef Py_ssize_t count = len(held)
        cdef Py_ssize_t number
        cdef int64_t batch_bytes = 0
        cdef int64_t time_ns
        cdef Piece *pieces
        cdef Scratch scratch
        if count == 0:
            raise InvalidInput("a batch needs at least one entry")
        if count == 1:
            return self._append_draft(held[0], timestamp_ns, stored_ns)
        time_ns = checked_timestamp(timestamp_ns)
        pieces = <Piece *>PyMem_Malloc(count * sizeof(Piece))
        if pieces == NULL:
            raise MemoryError()
        for number in range(count):
            pieces[number].note = NULL
        begin_scratch(&scratch, self._noted_tags())
        try:
            for number in range(count):
                gather(&pieces[number], &scratch, <object>PyTuple_GET_ITEM(held, number))
                self._check_piece(&pieces[number])
                batch_bytes += piece_bytes(&pieces[number])
            return self._place(pieces, count, scratch.data, batch_bytes, time_ns, stored_ns)
        finally:
            end_scratch(&scratch)
            for number in range(count):
                Py_XDECREF(pieces[number].note)
            PyMem_Free(pieces)

    cdef inline int64_t _noted_tags(self) noexcept:
        return -1 if self._notes is None else self._notes.tags

    def promise(self, synced_upto):
        """Let the next call write a checkpoint first: the file is durable up to that offset."""
        cdef int64_t offset = bounded(synced_upto)
        if offset < 0:
            raise InvalidInput(f"{synced_upto} is not an offset that can be durable")
        self._synced_upto = offset

    def write_checkpoint(self, timestamp_ns):
        """Write the promised checkpoint now; return False if there is no room."""
        cdef int64_t time_ns = checked_timestamp(timestamp_ns)
        cdef uint8_t *at
        if self._synced_upto < 0:
            return True
        if self._position + CHECKPOINT_BYTES > self._limit:
            return False
        if time_ns < self.last_timestamp_ns:
            time_ns = self.last_timestamp_ns
        at = self._data + self._position
        publish_u32(at, self._write_checkpoint(at, time_ns, 0, 0))
        self._position += CHECKPOINT_BYTES
        self._synced_upto = -1
        self.last_timestamp_ns = time_ns
        return True

    def take(self):
        """Return the bytes written so far and start again at the start of the buffer."""
        cdef bytes data
        if not self._held:
            return b""
        data = PyBytes_FromStringAndSize(<const char *>self._data, self._position)
        memset(self._data, 0, self._position)
        self._position = 0
        return data

    def release(self):
        """Release the buffer; every later append returns -1."""
        self._limit = 0
        if self._held:
            self._held = False
            self._data = NULL
            PyBuffer_Release(&self._buffer)

    cdef inline int _check_piece(self, const Piece *piece) except -1:
        if piece_bytes(piece) > self._max_entry_bytes:
            raise TooLarge(
                f"an entry of {piece_bytes(piece)} bytes; the maximum is {self._max_entry_bytes}"
            )
        return 0

    cdef inline int64_t _place_one(
        self, const Piece *piece, const uint8_t *fields, int64_t time_ns, int64_t *stored_ns
    ) except -2:
        self._check_piece(piece)
        return self._place(piece, 1, fields, piece_bytes(piece), time_ns, stored_ns)

    @cython.final
    cdef int64_t _place(
        self,
        const Piece *pieces,
        Py_ssize_t count,
        const uint8_t *fields,
        int64_t batch_bytes,
        int64_t time_ns,
        int64_t *stored_ns,
    ) except -2:
        cdef int64_t first_seq = self._next_seq
        cdef int64_t head_bytes = 0
        cdef uint32_t first_length
        cdef uint32_t length
        cdef uint8_t *start
        cdef uint8_t *at
        cdef Py_ssize_t number
        if batch_bytes > MAX_BATCH_BYTES:
            refuse_batch_bytes(batch_bytes)
        if time_ns < self.last_timestamp_ns:
            time_ns = self.last_timestamp_ns
        if count > 1 or self._synced_upto >= 0:
            head_bytes = CHECKPOINT_BYTES
        if (
            self.seq_limit < count
            or first_seq > self.seq_limit - count
            or time_ns > self.time_limit_ns
            or head_bytes + batch_bytes > self._limit - self._position
        ):
            return -1
        if self._notes is not None and (count > 1 or pieces.note != NULL):
            self._add_notes(pieces, count, time_ns)
        # Nothing below can fail. Nothing runs Python code from the checks above to the end.
        start = at = self._data + self._position
        if head_bytes == 0:
            first_length = write_piece(at, pieces, fields, first_seq, time_ns)
        else:
            first_length = self._write_checkpoint(
                at, time_ns, <uint32_t>count if count > 1 else 0, batch_bytes if count > 1 else 0
            )
            at += CHECKPOINT_BYTES
            for number in range(count):
                length = write_piece(at, &pieces[number], fields, first_seq + number, time_ns)
                store_u32(at, length)
                at += LENGTH_BYTES + length
        publish_u32(start, first_length)
        self._position += head_bytes + batch_bytes
        self._synced_upto = -1
        self._next_seq = first_seq + count
        if self._notes is not None:
            self._notes.upto = self._next_seq
        self.last_timestamp_ns = stored_ns[0] = time_ns
        return first_seq

    cdef int _add_notes(self, const Piece *pieces, Py_ssize_t count, int64_t time_ns) except -1:
        # Add all or none. Numbers are not seen by the garbage collector, so no Python code runs.
        cdef list noted = self._notes._noted
        cdef Py_ssize_t before = PyList_GET_SIZE(noted)
        cdef Py_ssize_t number
        cdef PyObject *note
        try:
            for number in range(count):
                note = pieces[number].note
                if note != NULL:
                    seq = PyLong_FromLongLong(self._next_seq + number)
                    timestamp_ns = PyLong_FromLongLong(time_ns)
                    set_item(note, 0, <PyObject *>seq)
                    set_item(note, 1, <PyObject *>timestamp_ns)
                    PyList_Append(noted, <object>note)
        except MemoryError:
            del noted[before:]
            raise
        return 0

    cdef uint32_t _write_checkpoint(
        self, uint8_t *at, int64_t time_ns, uint32_t frame_count, uint32_t frame_bytes
    ) noexcept:
        # Writes all but its length; returns the length.
        cdef uint32_t length = begin_entry(
            at, CHECKPOINT_BYTES, CHECKPOINT, 0, self._next_seq, time_ns
        )
        store_u64(at + FIXED_BYTES, self._synced_upto if self._synced_upto > 0 else 0)
        store_u32(at + FIXED_BYTES + 8, frame_count)
        store_u32(at + FIXED_BYTES + 12, frame_bytes)
        seal_entry(at, CHECKPOINT_BYTES, length)
        return length
