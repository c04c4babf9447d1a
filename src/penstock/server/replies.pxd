# The types of the compiled module. Without a compiler, the plain one does the same, slower.
cdef class Replies:
    cdef bytes _date
    cdef dict _json

    cpdef bytes json(self, int status, bytes body, bytes request_id)
