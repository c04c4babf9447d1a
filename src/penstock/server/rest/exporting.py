"""Export the messages of a queue: all that match, one JSON object a line."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from penstock.broker import Caller
from penstock.errors import KeyRefused, NotAllowed
from penstock.operations import Browse, Row, Verb
from penstock.server.call import LATER, Answer, Call
from penstock.server.export_limits import EXPORT_PAGE_BYTES
from penstock.server.off_loop import size_of_many
from penstock.server.replies import Reply
from penstock.server.rest.lease import wants_b64
from penstock.server.rest.listed_json import rows_json
from penstock.server.streamed_reply import StreamedReply, StreamEnded, stream

NDJSON = "application/x-ndjson"
MOST_EXPORTED = 1_000_000_000
# A payload may be JSON with line breaks: white space, since none can be within a string.
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")

CallerNow = Callable[[Call], Awaitable[Caller]]


async def caller_by_key(call: Call) -> Caller:
    """Return the caller of a request, by its key."""
    return await call.service.admit(call.headers, call.query_string, call.connection.peer)


async def export(call: Call, search: Browse, caller_now: CallerNow) -> Answer:
    """Answer with all messages that a search finds, read and sent page by page.

    If the connection ends without the last chunk, the export is not complete. It ends if the
    caller, as `caller_now` says before each page, lost the right.
    """
    exporting = _Export(call, search, caller_now)
    call.broker.admit(call.caller, Verb.READ, call.queue.namespace)
    limits = call.service.exports
    limits.begin()
    try:
        await exporting.make_page()  # errors are answered before the reply begins
        head = Reply(b"", content_type=NDJSON)
        return stream(call, head, exporting.send, exporting.end)
    except StreamEnded:
        exporting.end()
        return LATER
    except BaseException:
        exporting.end()
        raise


class _Export:
    """One export: where it is in the queue, and the page that the client is reading."""

    def __init__(self, call: Call, search: Browse, caller_now: CallerNow) -> None:
        self._call = call
        self._limits = call.service.exports
        self._search = search
        self._caller_now = caller_now
        self._b64 = wants_b64(call)
        self._left = call.query.whole("limit", 1, MOST_EXPORTED) or MOST_EXPORTED
        self._is_at_end = False
        self._page = b""
        self._page_bytes = 0  # that count in the limits
        self._reply: StreamedReply | None = None  # once it began

    def end(self) -> None:
        self._free_page()
        self._limits.end()

    def _free_page(self) -> None:
        self._page = b""
        self._limits.free(self._page_bytes)
        self._page_bytes = 0

    async def send(self, reply: StreamedReply) -> None:
        """Send all pages. Each is made when the client has read the one before."""
        call, self._reply = self._call, reply
        while True:
            await reply.send(self._page)
            await reply.until_read()
            self._free_page()
            if self._is_at_end:
                return
            try:
                (await self._caller_now(call)).check(Verb.READ, call.queue.namespace)
            except (KeyRefused, NotAllowed) as error:
                raise StreamEnded from error
            await self.make_page()

    async def make_page(self) -> None:
        """Make the next page when its bytes fit. Raise StreamEnded if the client has left."""
        size: int | None = 0  # not known before the page is read
        while size is not None:
            while not self._limits.fits(size):
                await self._limits.change()
                self._check_client()
            size = await self._try_page(size)

    def _check_client(self) -> None:
        if self._call.connection.is_closed or (self._reply and self._reply.ended.is_set()):
            raise StreamEnded

    async def _try_page(self, size: int) -> int | None:
        """Make the next page. If its bytes do not fit now, keep nothing and return their number.

        Few are made at a time: many would block other requests. `size` is what an earlier try
        returned: reading a page that does not fit is work for nothing.
        """
        call, limits = self._call, self._limits
        async with limits.making:
            self._check_client()
            if not limits.fits(size):  # another one was faster
                return size
            page = await call.broker.browse_on(call.queue, self._search, EXPORT_PAGE_BYTES)
            rows = page.rows[: self._left]
            size = size_of_many(len(rows), sum(len(row.message.payload) for row in rows))
            if not limits.fits(size):
                return size
            limits.take(size)
            self._page_bytes = size
            made = partial(_lines, rows, self._b64)
            self._page = await call.service.off_loop.run_if_large(size, made)
        self._left -= len(rows)
        self._is_at_end = not page.next_seq or not self._left
        self._search = replace(self._search, after_seq=page.next_seq)
        return None


def _lines(rows: Sequence[Row], b64: bool) -> bytes:
    found = [rows_json([row], b64, b"", b"").translate(_ONE_LINE) for row in rows]
    return b"\n".join([*found, b""])
