"""Memory whose end is the end: one byte further is a fault, not a wrong answer."""

import ctypes
import mmap

_PROT_NONE = 0
_PAGE = mmap.PAGESIZE


class GuardedMemory:
    """Holds bytes so that they end where a page begins that nobody may read."""

    def __init__(self, room_bytes: int) -> None:
        pages = -(-room_bytes // _PAGE)
        self._room = pages * _PAGE
        self._map = mmap.mmap(-1, self._room + _PAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        guard = ctypes.c_void_p(address + self._room)
        if libc.mprotect(guard, ctypes.c_size_t(_PAGE), _PROT_NONE) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
        self._view = memoryview(self._map)

    def hold(self, data: bytes) -> memoryview:
        """The data at the very end; valid until the next call."""
        view = self._view[self._room - len(data) : self._room]
        view[:] = data
        return view
