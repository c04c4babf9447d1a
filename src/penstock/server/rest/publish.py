"""POST …/{queue}/messages: publish one message or several, all or none."""

from collections.abc import Sequence

from penstock.model import Published
from penstock.server.rest.answers import PublishedMessage, PublishedMessages
from penstock.server.rest.message_out import encode

STATUS = 201


def answer(published: Sequence[Published], *, many: bool) -> bytes:
    if not many and not published[0].duplicate:
        return b'{"id":"%s"}' % published[0].id.encode()  # the usual one, and an id needs no escape
    items = [PublishedMessage(one.id, one.duplicate) for one in published]
    return encode(PublishedMessages(items) if many else items[0])
