# Notes of messages with options. Safe between threads: a packer adds notes and moves `upto` while no
# Python code runs, and so does `take`.


@cython.final
@cython.no_gc
cdef class Notes:
    """The messages with options that packers have written; see `notes_py.py`."""

    cdef readonly int64_t tags
    cdef readonly int64_t upto
    cdef list _noted

    def __cinit__(self, tags):
        self.tags = bounded(tags)
        if self.tags < 0:
            raise InvalidInput(f"{tags} is not a set of tags up to 62")
        self.upto = 0
        self._noted = []

    def __len__(self):
        return PyList_GET_SIZE(self._noted)

    def take(self):
        """Return `upto` and the notes of the messages below it, rising. Forget them."""
        cdef list fresh = []  # first: this may run Python code
        cdef list taken = self._noted
        cdef int64_t upto = self.upto
        self._noted = fresh
        return upto, taken


cdef inline PyObject *new_note(
    priority, deliver_at_ns, key, attributes, expires_at_ns
) except NULL:
    # Seq and timestamp are set when the message is written.
    cdef tuple note = (
        None,
        None,
        priority,
        deliver_at_ns,
        key if key is None else bytes(key),
        attributes,
        expires_at_ns,
    )
    Py_INCREF(note)
    return <PyObject *>note


cdef inline void set_item(PyObject *note, Py_ssize_t index, PyObject *value) noexcept:
    # In a tuple that no other code has seen yet.
    cdef PyObject *old = PyTuple_GET_ITEM(<tuple>note, index)
    Py_INCREF(<object>value)
    PyTuple_SET_ITEM(<tuple>note, index, <object>value)
    Py_XDECREF(old)
