# The types of the compiled module. Without a compiler, the plain one does the same, slower.
cimport cython
from penstock.server.routes cimport Route, Target, Times
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
    cpdef bytes whole_body(self)
    @cython.locals(service=Service, headers=dict)
    cpdef start(self)
    @cython.locals(route=Route)
    cdef _run(self)
    @cython.locals(service=Service)
    cdef _run_large(self, Route route)
    cdef _take_large(self, made)
    cdef _take(self, made)
    cpdef publish_one(self, message, make)
    cpdef lease_one(self, make)
    cpdef when_done(self, found, make, size_of=*, undo=*)
    cpdef succeed(self, result)
    cpdef fail(self, error)
    cdef _answer(self, made)
    cdef _answer_json(self, bytes body)
    cdef _send(self, reply, more=*)
    @cython.locals(service=Service, target=Target, times=Times)
    cdef _count(self, int status)
    cdef _take_back(self, result)
