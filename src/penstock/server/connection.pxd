# The types of the compiled module. Without a compiler, the plain one does the same, slower.
from penstock.server.call cimport Call
from penstock.server.request_reader cimport RequestReader
from penstock.server.routes cimport RouteTable
from penstock.server.service cimport Service

cdef class Connection:
    cdef public object loop, peer, transport
    cdef public Service service
    cdef public RouteTable routes
    cdef public bint is_tls, is_draining, is_read_paused, is_write_paused
    cdef public double deadline
    cdef RequestReader _reader
    cdef object _unread, _lease, _upgrade_rest
    cdef int _pieces, _started
    cdef bint _is_reading, _is_yielding, _is_answering, _is_half_closed, _is_ending
    cdef bint _is_confirming
    cdef double _body_until, _unconfirmed_at
    cdef Call _answering
    cdef Py_ssize_t _unsent, _writing, _corked_bytes
    cdef list _corked, _unconfirmed

    cdef _leave(self)
    cdef double _stalled_at(self)
    cdef _close(self)
    cdef _check_delivery(self)
    cdef _release_unconfirmed(self)
    cdef _set_deadline(self)
    cdef bint _ignores_data(self)
    cdef _read_on(self)
    cdef _yield_turn(self)
    cdef _parse(self, data)
    cdef _check_unfinished(self, Py_ssize_t size, bint was_in_head, Py_ssize_t before)
    cdef _send_continue(self)
    cdef _refuse(self, error)
    cdef _pause_reading(self)
    cdef _resume_reading(self)
    cdef _upgrade(self, rest)
    cdef _become_websocket(self, rest)
    cdef _answer_waiting(self)
    cpdef reply(self, bytes data)
    cpdef end_turn(self)
    cpdef flush(self)
    cdef _write(self, data)
    cdef _answered(self)
    cdef _drop_waiting(self)
