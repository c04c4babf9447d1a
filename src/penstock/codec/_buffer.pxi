# Bytes and numbers of the caller. Safe because a View holds its buffer while it exists, and is only
# made for a range inside it.

cdef enum:
    GIL_BYTES = 65536  # passes over more than this let other threads run


@cython.final
@cython.freelist(8)
cdef class View:
    cdef Py_buffer buffer
    cdef const uint8_t *data
    cdef bint held

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef View view_of(object source, int64_t start, int64_t end):
    cdef View view = View.__new__(View)
    PyObject_GetBuffer(source, &view.buffer, PyBUF_SIMPLE)
    view.held = True
    view.data = <const uint8_t *>view.buffer.buf
    if not 0 <= start <= end <= view.buffer.len:
        raise ValueError(
            f"range {start}..{end} is not inside a buffer of {view.buffer.len} bytes"
        )
    return view


cdef inline int64_t bounded(object value) except? -1:
    # Return -1 for an int that does not fit: it is outside of every limit here.
    cdef int overflow = 0
    cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
    return -1 if overflow else number


cdef inline int64_t checked_seq(object value) except -1:
    cdef int64_t seq = bounded(value)
    if seq < 0:
        raise InvalidInput(f"seq {value} is not between 0 and 2^63 - 1")
    return seq


cdef inline uint16_t checked_u16(object value) except? 0xFFFF:
    cdef int64_t number = bounded(value)
    if not 0 <= number <= 0xFFFF:
        raise InvalidInput(f"{value} is not between 0 and 65535")
    return <uint16_t>number


cdef inline int64_t checked_timestamp(object value) except -1:
    cdef int64_t timestamp_ns = bounded(value)
    if timestamp_ns < 0:
        raise InvalidInput(f"timestamp {value} ns is not between 1970 and 2262")
    return timestamp_ns


cdef inline int64_t checked_entry_limit(object value) except -1:
    cdef int64_t limit = bounded(value)
    if not 0 <= limit <= MAX_ENTRY_BYTES:
        raise InvalidInput(f"max_entry_bytes {value} is not up to {MAX_ENTRY_BYTES}")
    return limit


def crc32c(data, uint32_t value=0):
    """Return the CRC-32C (Castagnoli) of the data, continued from `value`."""
    cdef Py_buffer held
    cdef uint32_t state = ~value
    PyObject_GetBuffer(data, &held, PyBUF_SIMPLE)
    try:
        if held.len > GIL_BYTES:
            with nogil:
                state = crc32c_update(state, <const uint8_t *>held.buf, held.len)
        else:
            state = crc32c_update(state, <const uint8_t *>held.buf, held.len)
    finally:
        PyBuffer_Release(&held)
    return <uint32_t>~state


def crc32c_portable(data, uint32_t value=0):
    """Return the same by tables, as on a CPU without an instruction for it."""
    cdef Py_buffer held
    cdef uint32_t state = ~value
    PyObject_GetBuffer(data, &held, PyBUF_SIMPLE)
    try:
        state = crc32c_by_tables(state, <const uint8_t *>held.buf, held.len)
    finally:
        PyBuffer_Release(&held)
    return <uint32_t>~state


def crc32c_uses_instruction():
    """Return whether the CPU's instruction for CRC-32C is used."""
    return crc32c_has_instruction != 0
