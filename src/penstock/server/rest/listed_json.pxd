# The types of the compiled module. Without a compiler, the plain one does the same, slower.
cimport cython

cdef Py_ssize_t _SCANNED_BYTES
cdef bytes _JSON_PAYLOAD
cdef object _is_strict, _is_surely_strict, _write

cpdef bytes rows_json(rows, bint b64, bytes start, bytes end, long long max_payload_bytes=*)

@cython.locals(
    parts=list,
    comma=str,
    text=str,
    head=str,
    tail=bytes,
    id_=str,
    payload=bytes,
    seq="long long",
    priority="long long",
    attempts="long long",
    tail_attempts="long long",
    published_ns="long long",
    due="long long",
    expires="long long",
    most="long long",
    micros="long long",
    second="long long",
    text_second="long long",
    total="long long",
)
cpdef bytes plain_rows_json(rows, bint b64, bytes start, bytes end, long long max_payload_bytes=*)
cdef bint _is_json(bytes payload) except -1
cdef _add_options(list parts, message, bint b64)
