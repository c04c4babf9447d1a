"""The usual append: one call into the packer, which is atomic and takes no lock.

Everything that is not usual is behind the gate: with `packer.limit = 0` the packer answers -1 (or
None), and the caller comes to `_write`, where locks are held. So the usual append pays nothing for
any of it.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.codec import Draft, Packer

Item = bytes | Draft
T = TypeVar("T", int, tuple[int, int])


class Appending:
    """The ways to append to a log. Each leaves the unusual to a function of its own: a name that a
    lambda takes from outside is slower to use, also where the lambda is never made. And each takes
    the clock into a local: a callable in an attribute is slow to call where it stands."""

    hot: Packer  # what an append tries first; who must be quick tries it himself
    now_ns: Callable[[], int]

    def _write(self, items: Sequence[Item], write: Callable[[Packer, int], T | None]) -> T:
        """Behind the gate: find out what is in the way, mend it, write."""
        raise NotImplementedError

    def append(self, payload: bytes) -> int:
        """Write a message without options; its seq."""
        now_ns = self.now_ns
        seq = self.hot.append(payload, now_ns())
        if seq < 0:
            return self._write_plain(payload)
        return seq

    def _write_plain(self, payload: bytes) -> int:
        return self._write([payload], lambda packer, now: packer.append(payload, now))

    def append_draft(self, draft: Draft) -> int:
        """Write one entry with options; its seq."""
        now_ns = self.now_ns
        seq = self.hot.append_draft(draft, now_ns())
        if seq < 0:
            return self._write_draft(draft)
        return seq

    def _write_draft(self, draft: Draft) -> int:
        return self._write([draft], lambda packer, now: packer.append_draft(draft, now))

    def append_batch(self, items: Sequence[Item]) -> int:
        """Write entries that are there together or not at all after a crash; the first seq."""
        now_ns = self.now_ns
        seq = self.hot.append_batch(items, now_ns())
        if seq < 0:
            return self._write_batch(items)
        return seq

    def _write_batch(self, items: Sequence[Item]) -> int:
        return self._write(items, lambda packer, now: packer.append_batch(items, now))

    def append_event(self, type_: int, body: bytes) -> int:
        """Write one event; its seq."""
        now_ns = self.now_ns
        seq = self.hot.append_event(type_, body, now_ns())
        if seq < 0:
            return self._write_event(type_, body)
        return seq

    def _write_event(self, type_: int, body: bytes) -> int:
        return self._write(
            [Draft(body, type_)], lambda packer, now: packer.append_event(type_, body, now)
        )

    # The same, for callers that must know the timestamp under which the entry was stored.

    def append_stamped(self, payload: bytes) -> tuple[int, int]:
        """As `append`; (seq, timestamp_ns)."""
        now_ns = self.now_ns
        stamped = self.hot.append_stamped(payload, now_ns())
        if stamped is None:
            return self._write_stamped(payload)
        return stamped

    def _write_stamped(self, payload: bytes) -> tuple[int, int]:
        return self._write([payload], lambda packer, now: packer.append_stamped(payload, now))

    def append_draft_stamped(self, draft: Draft) -> tuple[int, int]:
        """As `append_draft`; (seq, timestamp_ns)."""
        now_ns = self.now_ns
        stamped = self.hot.append_draft_stamped(draft, now_ns())
        if stamped is None:
            return self._write_draft_stamped(draft)
        return stamped

    def _write_draft_stamped(self, draft: Draft) -> tuple[int, int]:
        return self._write([draft], lambda packer, now: packer.append_draft_stamped(draft, now))

    def append_batch_stamped(self, items: Sequence[Item]) -> tuple[int, int]:
        """As `append_batch`; (first seq, timestamp_ns)."""
        now_ns = self.now_ns
        stamped = self.hot.append_batch_stamped(items, now_ns())
        if stamped is None:
            return self._write_batch_stamped(items)
        return stamped

    def _write_batch_stamped(self, items: Sequence[Item]) -> tuple[int, int]:
        return self._write(items, lambda packer, now: packer.append_batch_stamped(items, now))
