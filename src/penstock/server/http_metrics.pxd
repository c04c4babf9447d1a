# The types of the compiled module. Without a compiler, the plain one does the same, slower.
cdef class Times:
    cdef public list counts
    cdef public object total_ns

    cpdef add(self, took_ns)
