# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The answer to a usual lease, the rows of a usual page and the body of a usual ack, in one pass.

`rest/message_out.py`, `rest/listed_json.py` and `rest/settle.py` have the same in Python, used
without a compiler. A test compares them. `leased_json` takes 0.5 µs for a message of 200 bytes
instead of 3 µs; `rows_json` 2.9 µs for ten instead of 5.4 µs; `read_ack` 0.2 µs instead of 1.2 µs.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

from penstock.model import Receipt

cdef object new_tuple = tuple.__new__
cdef const char* TO_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
cdef uint8_t FROM_BASE64[256]
cdef int _number
for _number in range(256):
    FROM_BASE64[_number] = 255
for _number in range(64):
    FROM_BASE64[<uint8_t> TO_BASE64[_number]] = _number

cdef enum:
    ID_SIZE = 26
    RECEIPT_SIZE = 32
    RECEIPT_BYTES = 24
    MOST_AROUND = 512  # bytes of an answer without its payload; the longest one has 338
    MOST_STATE = 32  # bytes of the name of a state
    MOST_AROUND_ROW = 256 + MOST_STATE  # bytes of a row without its payload

cdef uint64_t LAST_NS = 9_000_000_000_000_000_000  # of the times that are written here


cdef inline char* put(char* at, bytes text):
    memcpy(at, <const char*> text, len(text))
    return at + len(text)


cdef inline char* put_digits(char* at, uint64_t number, int width):
    """Write a number of `width` digits."""
    cdef int place
    for place in range(width - 1, -1, -1):
        at[place] = <char> (48 + number % 10)
        number //= 10
    return at + width


cdef inline char* put_number(char* at, uint64_t number):
    cdef int width = 1
    cdef uint64_t rest = number
    while rest >= 10:
        rest //= 10
        width += 1
    return put_digits(at, number, width)


cdef inline char* put_time(char* at, uint64_t at_ns):
    """Write a time as `rfc3339` does."""
    cdef uint64_t micros = (at_ns + 500) // 1000
    cdef uint64_t second = micros // 1_000_000
    cdef uint64_t day = second // 86_400, of_day = second % 86_400
    # The date by http://howardhinnant.github.io/date_algorithms.html#civil_from_days
    cdef uint64_t shifted = day + 719_468
    cdef uint64_t era = shifted // 146_097, of_era = shifted % 146_097
    cdef uint64_t year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    cdef uint64_t of_year = of_era - (365 * year + year // 4 - year // 100)
    cdef uint64_t month = (5 * of_year + 2) // 153
    at = put_digits(at, era * 400 + year + (1 if month >= 10 else 0), 4)
    at[0] = b"-"
    put_digits(at + 1, month + 3 if month < 10 else month - 9, 2)
    at[3] = b"-"
    put_digits(at + 4, of_year - (153 * month + 2) // 5 + 1, 2)
    at[6] = b"T"
    put_digits(at + 7, of_day // 3600, 2)
    at[9] = b":"
    put_digits(at + 10, of_day // 60 % 60, 2)
    at[12] = b":"
    put_digits(at + 13, of_day % 60, 2)
    at[15] = b"."
    put_digits(at + 16, micros % 1_000_000, 6)
    at[22] = b"Z"
    return at + 23


cdef inline void put_little(uint8_t* at, uint64_t number, int width):
    cdef int place
    for place in range(width):
        at[place] = <uint8_t> (number >> 8 * place)


cdef inline uint64_t little(const uint8_t* at, int width):
    cdef uint64_t number = 0
    cdef int place
    for place in range(width):
        number |= <uint64_t> at[place] << 8 * place
    return number


cdef char* put_receipt(
    char* at, uint64_t identity, uint64_t group, uint64_t attempt, uint64_t seq, uint64_t nonce
):
    cdef uint8_t packed[RECEIPT_BYTES]
    cdef int place, three
    put_little(packed, identity, 4)
    put_little(packed + 4, group, 2)
    put_little(packed + 6, attempt, 2)
    put_little(packed + 8, seq, 8)
    put_little(packed + 16, nonce, 8)
    for place in range(0, RECEIPT_BYTES, 3):
        three = packed[place] << 16 | packed[place + 1] << 8 | packed[place + 2]
        at[0] = TO_BASE64[three >> 18]
        at[1] = TO_BASE64[three >> 12 & 63]
        at[2] = TO_BASE64[three >> 6 & 63]
        at[3] = TO_BASE64[three & 63]
        at += 4
    return at


cdef tuple checked(one, int place, Py_ssize_t size):
    """Return a part of a named tuple, which is a tuple of `size` items."""
    part = (<tuple> one)[place] if isinstance(one, tuple) and len(<tuple> one) == 2 else None
    if not isinstance(part, tuple) or len(<tuple> part) != size:
        raise TypeError("not a LeasedMessage")
    return <tuple> part


def leased_json(one not None, str json not None, is_strict not None):
    """Return the answer with one usual leased message; None if it must be written otherwise.

    `one` is a LeasedMessage, `json` is the content type, and `is_strict` says of a payload whether it can be written as JSON.
    """
    cdef tuple message, ticket
    message, ticket = checked(one, 0, 11), checked(one, 1, 7)
    cdef object id_ = message[0]
    cdef bytes payload
    cdef char around[MOST_AROUND]
    cdef char* at = around
    cdef char* out
    cdef Py_ssize_t before, after
    cdef uint64_t seq, published_ns, deadline_ns, attempt
    if (
        message[9] != json
        or message[5]
        or message[6]
        or message[8]
        or message[10]
        or message[7] is not None
        or type(id_) is not str
        or type(message[2]) is not bytes
    ):
        return None
    cdef bytes name = (<str> id_).encode()
    payload = message[2]
    seq, published_ns = message[1], message[4]
    attempt, deadline_ns = ticket[3], ticket[5]
    if len(name) != ID_SIZE or published_ns > LAST_NS or deadline_ns > LAST_NS:
        return None
    if not is_strict(payload):
        return None
    at = put(at, b'{"messages":[{"id":"')
    at = put(at, name)
    at = put(at, b'","seq":')
    at = put_number(at, seq)
    at = put(at, b',"priority":')
    at = put_number(at, message[3])
    at = put(at, b',"published_at":"')
    at = put_time(at, published_ns)
    at = put(at, b'","content_type":"application/json","payload":')
    before = at - around
    at = put(at, b',"receipt":"')
    at = put_receipt(at, ticket[0], ticket[1], attempt, seq, ticket[4])
    at = put(at, b'","attempt":')
    at = put_number(at, attempt)
    at = put(at, b',"deadline":"')
    at = put_time(at, deadline_ns)
    at = put(at, b'"}]}')
    after = at - around - before
    cdef bytes answer = PyBytes_FromStringAndSize(NULL, before + len(payload) + after)
    out = answer
    memcpy(out, around, before)
    memcpy(out + before, <const char*> payload, len(payload))
    memcpy(out + before + len(payload), around + before, after)
    return answer


cdef inline bint is_usual(tuple message, str json) except -1:
    """Return whether a message has no option, and its payload may be JSON."""
    return not (
        message[9] != json
        or message[5]
        or message[6]
        or message[8]
        or message[10]
        or message[7] is not None
        or type(message[0]) is not str
        or type(message[2]) is not bytes
        or <uint64_t> message[4] > LAST_NS
    )


def rows_json(
    rows not None,
    str json not None,
    is_strict not None,
    bytes start not None,
    bytes end not None,
    Py_ssize_t max_payload_bytes,
    Py_ssize_t max_strict_bytes,
):
    """Return usual rows with commas, between start and end; None if any must be written otherwise.

    Return nothing if the payloads are larger than `max_payload_bytes`. `json` and `is_strict` are
    as for `leased_json`, which is asked about payloads up to `max_strict_bytes`.
    """
    cdef list found = list(rows)
    cdef Py_ssize_t size = 0, total = 0
    cdef tuple message
    for one in found:
        message = checked_row(one)
        if not is_usual(message, json):
            return None
        size = len(<bytes> message[2])
        total += size
        if total > max_payload_bytes:
            return b""
        if size > max_strict_bytes or not is_strict(message[2]):
            return None
    cdef Py_ssize_t room = len(start) + total + len(found) * MOST_AROUND_ROW + len(end)
    cdef bytes answer = PyBytes_FromStringAndSize(NULL, room)
    cdef char* out = PyBytes_AS_STRING(answer)
    cdef char* at = put(out, start)
    cdef const char* text
    cdef bint is_first = True
    for one in found:
        message = <tuple> (<tuple> one)[0]
        at = put(at, b'{"id":"' if is_first else b',{"id":"')
        is_first = False
        text = PyUnicode_AsUTF8AndSize(message[0], &size)
        if size != ID_SIZE:
            return None
        memcpy(at, text, ID_SIZE)
        at = put(at + ID_SIZE, b'","seq":')
        at = put_number(at, message[1])
        at = put(at, b',"priority":')
        at = put_number(at, message[3])
        at = put(at, b',"published_at":"')
        at = put_time(at, message[4])
        at = put(at, b'","content_type":"application/json","payload":')
        at = put(at, <bytes> message[2])
        at = put(at, b',"state":"')
        text = PyUnicode_AsUTF8AndSize((<tuple> one)[1], &size)
        if size > MOST_STATE:
            return None
        memcpy(at, text, size)
        at = put(at + size, b'","attempts":')
        at = put_number(at, (<tuple> one)[2])
        at = put(at, b"}")
    at = put(at, end)
    return answer[:at - out]


cdef tuple checked_row(one):
    """Return the message of a row, which is a named tuple."""
    message = (<tuple> one)[0] if isinstance(one, tuple) and len(<tuple> one) == 3 else None
    if not isinstance(message, tuple) or len(<tuple> message) != 11:
        raise TypeError("not a Row")
    return <tuple> message


cdef inline bint take(const uint8_t** at, const uint8_t* end, bytes token):
    """Move behind a token and the space before it. Return False if another one comes."""
    cdef const uint8_t* p = at[0]
    cdef const uint8_t* expected = token
    cdef Py_ssize_t place
    while p < end and (p[0] == 32 or p[0] == 10 or p[0] == 13 or p[0] == 9):
        p += 1
    if end - p < len(token):
        return False
    for place in range(len(token)):
        if p[place] != expected[place]:
            return False
    at[0] = p + len(token)
    return True


def read_ack(bytes body not None):
    """Return the receipt of `{"ack":["…"]}`, as text and read; None for any other body."""
    cdef const uint8_t* at = body
    cdef const uint8_t* end = at + len(body)
    cdef const uint8_t* text
    cdef uint8_t packed[RECEIPT_BYTES]
    cdef uint8_t a, b, c, d
    cdef int place
    if not (
        take(&at, end, b"{")
        and take(&at, end, b'"ack"')
        and take(&at, end, b":")
        and take(&at, end, b"[")
        and take(&at, end, b'"')
    ):
        return None
    text = at
    if end - at < RECEIPT_SIZE:
        return None
    for place in range(8):
        a, b = FROM_BASE64[at[0]], FROM_BASE64[at[1]]
        c, d = FROM_BASE64[at[2]], FROM_BASE64[at[3]]
        if (a | b | c | d) & 0xC0:
            return None
        packed[3 * place] = a << 2 | b >> 4
        packed[3 * place + 1] = (b & 15) << 4 | c >> 2
        packed[3 * place + 2] = (c & 3) << 6 | d
        at += 4
    if at[0] != b'"':  # a byte behind the body is zero
        return None
    at += 1
    if not (take(&at, end, b"]") and take(&at, end, b"}") and take(&at, end, b"")) or at != end:
        return None
    read = new_tuple(
        Receipt,
        (
            little(packed, 4),
            little(packed + 4, 2),
            little(packed + 6, 2),
            little(packed + 8, 8),
            little(packed + 16, 8),
        ),
    )
    return (<const char*> text)[:RECEIPT_SIZE].decode("ascii"), read
