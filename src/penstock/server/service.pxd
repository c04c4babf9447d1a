# The types of the compiled module. Without a compiler, the plain one does the same, slower.
from penstock.server.replies cimport Replies
from penstock.server.routes cimport RouteTable

cdef class Service:
    cdef public object broker, keys, stream_keys, webhooks, monotonic_ns, cursors, connections
    cdef public object tasks, held, off_loop, large_answers, exports, http_metrics, ticks, settings, tracing
    cdef public RouteTable routes, streams
    cdef public Replies replies
    cdef public Py_ssize_t handshakes, streamed_replies
    cdef public bint is_stopping, reports_answers
    cdef object _second, _run_id, _proxies, _callers_of
    cdef long long _request_number
    cdef bint _trusts_unix
    cdef dict _callers
    cdef list _corked

    cpdef cork(self, connection)
    cpdef bytes request_id(self, given=*)
    cpdef known_caller(self, dict headers, bytes query, peer)
    cdef _address(self, dict headers, peer)
