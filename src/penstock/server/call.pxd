# The types of the compiled module. Without a compiler, the plain one does the same, slower.
from penstock.server.routes cimport Target
from penstock.server.service cimport Service

cdef class Call:
    cdef public object connection, method, caller, query, request_id, query_string
    cdef public Service service
    cdef public Target target
    cdef public object began_ns
    cdef public bytes url
    cdef public dict headers
    cdef public list repeated
    cdef public bint keep_alive
    cdef public Py_ssize_t size
    cdef object _body, _make, _size_of, _undo

    cpdef add(self, bytes part)
    cpdef start(self)
    cdef _run(self)
    cdef _take(self, made)
    cpdef succeed(self, result)
    cpdef fail(self, error)
    cdef _answer(self, made)
    cdef _send(self, reply, more=*)
    cdef _count(self, int status)
    cdef _take_back(self, result)
