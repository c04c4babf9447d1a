# The types of the compiled module. Without a compiler, the plain one does the same, slower.
cimport cython
from penstock.server.call cimport Call
from penstock.server.service cimport Service

cdef class RequestReader:
    cdef object _connection, _settings, _parser, _piece
    cdef Service _service
    cdef bytes _raw_head
    cdef dict _headers
    cdef list _repeated
    cdef Py_ssize_t _header_bytes
    cdef bint _at_body, _checks_spaces, _ends_in_space
    cdef bytes _host
    cdef public int phase
    cdef public Py_ssize_t messages, head_bytes, body_bytes, buffered
    cdef public bytes url
    cdef public object refusal
    cdef public bint expects_continue, got_last_request
    cdef public Call call
    cdef public object waiting

    @cython.locals(part=bytes, is_head=bint, has_spaces=bint)
    cdef feed(self, data)
    cdef _feed(self, data)
    cdef Py_ssize_t _part_bytes(self, bytes data)
    @cython.locals(headers=dict)
    cdef _judge_head(self, version)
    cdef _judge_length(self, bytes length)
    cdef check_header_bytes(self)
    cdef check_overhead(self)
    cdef bint _has_single_spaces(self, bytes method)
    cdef piece_bytes(self, usual)
