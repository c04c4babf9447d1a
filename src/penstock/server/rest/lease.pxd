# The types of the compiled module. Without a compiler, the plain one does the same, slower.
from penstock.server.call cimport Call

cpdef lease_messages(Call call)
cdef _lease_one(Call call)
