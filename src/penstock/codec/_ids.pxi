# Message ids as text. `parse_id` stays in Python: it is not on a hot path.

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
    """The id of a message."""
    cdef int64_t number = bounded(seq)
    if not 0 <= number <= MAX_ID_SEQ:
        raise InvalidInput(f"seq {seq} does not fit into an id")
    return id_text(
        <uint64_t>(<int64_t>timestamp_ns // 1000000), <uint32_t>(<uint64_t>identity), number
    )


def make_ids(timestamp_ns, identity, first_seq, Py_ssize_t count):
    """The ids of messages that were written together."""
    cdef int64_t first = bounded(first_seq)
    cdef Py_ssize_t number
    cdef uint64_t milliseconds = <uint64_t>(<int64_t>timestamp_ns // 1000000)
    cdef uint32_t who = <uint32_t>(<uint64_t>identity)
    if count > 0 and not 0 <= first <= MAX_ID_SEQ - (count - 1):
        if first < 0 or first > MAX_ID_SEQ:
            raise InvalidInput(f"seq {first_seq} does not fit into an id")
        raise InvalidInput(f"seq {MAX_ID_SEQ + 1} does not fit into an id")
    return [id_text(milliseconds, who, first + number) for number in range(count)]
