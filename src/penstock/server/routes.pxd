# The types of the compiled module. Without a compiler, the plain one does the same, slower.
cdef class Times:
    cdef public list counts
    cdef public object total_ns  # may be more than 64 bits

    cpdef add(self, took_ns)

cdef class Route:
    cdef public object method, path, handler, parameters, error_reply
    cdef public bint needs_key, is_large
    cdef public int status

cdef class Target:
    cdef public Route route
    cdef public dict params, times
    cdef object _queue

    cpdef queue(self)

cdef class RouteTable:
    cdef public tuple routes
    cdef dict _by_length, _remembered

    cpdef tuple find(self, method, bytes url)
