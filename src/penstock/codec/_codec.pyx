# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False, auto_pickle=False
"""The codec, compiled. `codec_py.py` is the specification; the body here is another one.

It is safe on bytes from any source:

- Every function holds the buffer while it works, so it is neither resized nor unmapped meanwhile.
- A range is checked against the buffer once, a length against the range before it is used, in
  64-bit arithmetic, where lengths (32 bits) cannot overflow.
- A number from the buffer is loaded once into a local, then checked, then used. Another process
  that changes the bytes meanwhile can make the result wrong, but not the access.
- Nothing is allocated by a number from the buffer before it was checked against the buffer.

Long passes release the interpreter lock; a Packer call never does (see `_packer.pxi`).
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_Check,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_SetItem
from cpython.list cimport PyList_Append, PyList_GET_SIZE
from cpython.long cimport PyLong_FromLongLong
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from penstock.codec import layout
from penstock.codec.entry import COLUMN_NAMES, Columns, Draft, Entry, Skim
from penstock.codec.ids_py import parse_id
from penstock.errors import BadEntry, InvalidInput, NewerVersion, TooLarge
from penstock.model import NO_HEADERS, Message

IMPLEMENTATION = "compiled"
REVISION = 2  # see penstock/codec/__init__.py

cdef extern from "crc32c.h" nogil:
    void crc32c_init()
    int crc32c_has_instruction
    uint32_t crc32c_update(uint32_t state, const uint8_t *data, size_t count)
    uint32_t crc32c_shift(uint32_t state, uint64_t count)
    uint32_t crc32c_of(const uint8_t *data, size_t count)
    uint32_t crc32c_by_tables "crc32c_portable"(uint32_t state, const uint8_t *data, size_t count)

cdef extern from "little_endian.h" nogil:
    uint16_t load_u16(const uint8_t *at)
    uint32_t load_u32(const uint8_t *at)
    uint64_t load_u64(const uint8_t *at)
    void store_u16(uint8_t *at, uint16_t value)
    void store_u32(uint8_t *at, uint32_t value)
    void store_u64(uint8_t *at, uint64_t value)
    void publish_u32(uint8_t *at, uint32_t value)
    uint32_t load_published_u32(const uint8_t *at)

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

crc32c_init()

include "_layout.pxi"
include "_buffer.pxi"
include "_notes.pxi"
include "_pack.pxi"
include "_packer.pxi"
include "_unpack.pxi"
include "_scan.pxi"
include "_columns.pxi"
include "_messages.pxi"
