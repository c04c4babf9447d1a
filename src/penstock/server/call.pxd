# The types of the compiled module. Without a compiler, the plain one does the same, slower.
cdef class Call:
    cdef public object connection, service, method, target, caller, query, request_id, query_string
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
