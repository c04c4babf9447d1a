# cython: language_level=3, boundscheck=False, wraparound=False
"""A quick check of JSON bodies, so that most need no second decoding: see `strict_json`.

There is no twin: without it, `strict_json.check` decides alone. A test compares the two. It takes
0.3 µs for a message of 150 bytes with 12 keys; decoding it and counting keys takes 4 µs.
"""

from libc.string cimport memcmp

cdef bint ENDS_TEXT[256]  # a quote, and what makes the answer False
for _byte in range(256):
    ENDS_TEXT[_byte] = _byte < 0x20 or _byte >= 0x80 or _byte in b'"\\'

cdef enum:
    MAX_DEPTH = 32
    MAX_KEYS = 64  # of the objects that are open at one place
    MAX_DIGITS = 18  # of a number

cdef enum Expected:
    VALUE
    VALUE_OR_END  # after [
    KEY
    KEY_OR_END  # after {
    COLON
    COMMA_OR_END  # after a value


cdef inline Py_ssize_t end_of_number(const unsigned char* p, Py_ssize_t at, Py_ssize_t n) noexcept:
    """Return where a number without an exponent ends; -1 if it is none, or is a long one."""
    cdef Py_ssize_t start, digits
    if p[at] == b"-":
        at += 1
    start = at
    while at < n and b"0" <= p[at] <= b"9":
        at += 1
    digits = at - start
    if digits == 0 or (digits > 1 and p[start] == b"0"):
        return -1
    if at < n and p[at] == b".":
        at += 1
        start = at
        while at < n and b"0" <= p[at] <= b"9":
            at += 1
        if at == start:
            return -1
        digits += at - start
    return at if digits <= MAX_DIGITS else -1


def is_surely_strict(bytes body):
    """Return True if a body surely is JSON that `strict_json.check` accepts.

    So it is ASCII without escapes, and has no key twice in an object, no exponent, no long number
    and no deep nesting. False means that it has to be checked.
    """
    cdef const unsigned char* p = body
    cdef const unsigned char* keys[MAX_KEYS]
    cdef Py_ssize_t sizes[MAX_KEYS]
    cdef int first_key[MAX_DEPTH]  # of each open object; -1 for a list
    cdef Py_ssize_t n = len(body), at = 0, start, size
    cdef int depth = 0, count = 0, key
    cdef Expected expected = VALUE
    cdef unsigned char c
    while at < n:
        c = p[at]
        if c == b" " or c == b"\n" or c == b"\r" or c == b"\t":
            at += 1
        elif c == b'"':
            at += 1
            start = at
            while at < n and not ENDS_TEXT[p[at]]:
                at += 1
            if at == n or p[at] != b'"':
                return False
            size = at - start
            at += 1
            if expected <= VALUE_OR_END:
                expected = COMMA_OR_END
            elif expected <= KEY_OR_END:
                if count == MAX_KEYS:
                    return False
                for key in range(first_key[depth - 1], count):
                    if sizes[key] == size and memcmp(keys[key], p + start, size) == 0:
                        return False
                keys[count] = p + start
                sizes[count] = size
                count += 1
                expected = COLON
            else:
                return False
        elif c == b",":
            if expected != COMMA_OR_END or depth == 0:
                return False
            at += 1
            expected = VALUE if first_key[depth - 1] < 0 else KEY
        elif c == b":":
            if expected != COLON:
                return False
            at += 1
            expected = VALUE
        elif c == b"}":
            if depth == 0 or first_key[depth - 1] < 0:
                return False
            if expected != COMMA_OR_END and expected != KEY_OR_END:
                return False
            at += 1
            depth -= 1
            count = first_key[depth]
            expected = COMMA_OR_END
        elif c == b"]":
            if depth == 0 or first_key[depth - 1] >= 0:
                return False
            if expected != COMMA_OR_END and expected != VALUE_OR_END:
                return False
            at += 1
            depth -= 1
            expected = COMMA_OR_END
        elif expected > VALUE_OR_END:
            return False
        elif c == b"{" or c == b"[":
            if depth == MAX_DEPTH:
                return False
            at += 1
            first_key[depth] = count if c == b"{" else -1
            expected = KEY_OR_END if c == b"{" else VALUE_OR_END
            depth += 1
        elif c == b"t" or c == b"n":
            if n - at < 4 or memcmp(p + at, b"true" if c == b"t" else b"null", 4) != 0:
                return False
            at += 4
            expected = COMMA_OR_END
        elif c == b"f":
            if n - at < 5 or memcmp(p + at, b"false", 5) != 0:
                return False
            at += 5
            expected = COMMA_OR_END
        else:
            at = end_of_number(p, at, n)
            if at < 0:
                return False
            expected = COMMA_OR_END
    return depth == 0 and expected == COMMA_OR_END
