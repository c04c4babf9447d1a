"""A usual message of a listing as JSON: without an object for it, and in a third of the time."""

from penstock.operations import Row
from penstock.operations.answers import rfc3339
from penstock.server import strict_json
from penstock.server.replies import JSON


def listed_json(row: Row) -> bytes | None:
    """Return a message like `message_out.listed` encoded; None if it has any option."""
    message, state, attempts = row
    id_, seq, payload, priority, published_ns, due, expires, key, headers, kind, most = message
    if kind != JSON or due or expires or headers or most or key is not None:
        return None
    if not strict_json.is_strict(payload):
        return None
    return (
        f'{{"id":"{id_}","seq":{seq},"priority":{priority},"published_at":"{rfc3339(published_ns)}"'
        f',"content_type":"{JSON}","payload":'
    ).encode() + b'%b,"state":"%b","attempts":%d}' % (payload, state.encode(), attempts)
