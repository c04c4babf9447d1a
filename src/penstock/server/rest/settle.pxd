# The types of the compiled module. Without a compiler, the plain one does the same, slower.
from penstock.server.call cimport Call

cpdef settle_messages(Call call)
