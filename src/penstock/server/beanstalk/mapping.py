"""What beanstalk's words mean here: tubes, job ids, priorities and times to run. Pure functions."""

import re
from collections.abc import Mapping

from penstock.broker import QueueName, check_name
from penstock.errors import InvalidInput
from penstock.model import NS, Message

# -- tubes -----------------------------------------------------------------------------------------

MAX_TUBE_BYTES = 200
DEFAULT_TUBE = "default"

_TUBE = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}", re.ASCII)
_ENCODED = "_b."  # begins the names of queues whose tube is no queue name itself
_ESCAPED = re.compile(r"[^A-Za-z0-9-]", re.ASCII)
_ESCAPE = re.compile(r"_([0-9a-f]{2})", re.ASCII)


def queue_name_of(tube: str) -> str | None:
    """Return the name of a tube's queue; None if it is no tube, or too long to be encoded.

    A name that both allow is used as it is. Others are escaped, behind a prefix.

    >>> queue_name_of("emails"), queue_name_of("a/b+c"), queue_name_of("-x")
    ('emails', '_b.a_2fb_2bc', None)
    """
    if not _TUBE.fullmatch(tube):
        return None
    name = tube if _is_plain(tube) else _ENCODED + _ESCAPED.sub(_escape, tube)
    return name if _is_queue_name(name) else None


def tube_of(queue_name: str) -> str | None:
    """Return the tube of a queue; None if it can have none. The inverse of `queue_name_of`.

    >>> tube_of("emails"), tube_of("_b.a_2fb_2bc"), tube_of("_b.emails")
    ('emails', 'a/b+c', None)
    """
    tube = queue_name
    if tube.startswith(_ENCODED):
        tube = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), tube.removeprefix(_ENCODED))
    return tube if queue_name_of(tube) == queue_name else None


def _is_plain(tube: str) -> bool:
    return not tube.startswith(_ENCODED) and _is_queue_name(tube)


def _is_queue_name(name: str) -> bool:
    try:
        check_name("queue", name)
    except InvalidInput:
        return False
    return True


def _escape(found: re.Match[str]) -> str:
    return f"_{ord(found[0]):02x}"


def queue_of(namespace: str, tube: str) -> QueueName | None:
    """Return the queue of a tube."""
    name = queue_name_of(tube)
    return None if name is None else QueueName(namespace, name)


# -- job ids ---------------------------------------------------------------------------------------

SEQ_BITS = 44
MAX_SEQ = (1 << SEQ_BITS) - 1
MAX_TUBES = 1 << (63 - SEQ_BITS)  # so that an id fits into a signed number of 64 bits


def job_id(number: int, seq: int) -> int:
    """Return the id of a job: the number of its tube, and its seq there.

    >>> job_id(0, 7), job_id(1, 7)
    (7, 17592186044423)
    """
    return number << SEQ_BITS | seq


def split_id(id: int) -> tuple[int, int]:
    """Return the number of a job's tube, and its seq."""
    return id >> SEQ_BITS, id & MAX_SEQ


# -- priorities ------------------------------------------------------------------------------------

MAX_U32 = (1 << 32) - 1
URGENT = 1024  # jobs below are `current-jobs-urgent`
# For each of the ten priorities of a queue, the smallest number of beanstalk that belongs to it.
_FIRST = (1 << 31, 1 << 28, 1 << 24, 1 << 20, (1 << 16) + 1, URGENT, 512, 128, 1, 0)
# What a job without the header has: of priority 5, the default of most clients.
_USUAL = (*_FIRST[:5], 1 << 16, *_FIRST[6:])


def priority_of(pri: int) -> int:
    """Return a queue's priority, 0 to 9, higher first, for beanstalk's, where 0 is first.

    >>> [priority_of(pri) for pri in (0, 100, 1023, 1024, 65536, 65537, 2**32 - 1)]
    [9, 8, 6, 5, 5, 4, 0]
    """
    for priority, first in enumerate(_FIRST):
        if pri >= first:
            return priority
    raise AssertionError("no number is below 0")


PRI_HEADER = "beanstalk-pri"
TTR_HEADER = "beanstalk-ttr"
DEFAULT_TTR_S = 60
_DEFAULT_TTR_NS = DEFAULT_TTR_S * NS
MAX_TTR_S = 7 * 86400  # the longest lease
MAX_DELAY_S = 100 * 365 * 86400


def headers_of(pri: int, ttr_s: int) -> dict[str, str] | None:
    """Return the headers that keep a client's own numbers; None if they are the usual ones."""
    headers = {}
    if pri != _USUAL[priority_of(pri)]:
        headers[PRI_HEADER] = str(pri)
    if ttr_s != DEFAULT_TTR_S:
        headers[TTR_HEADER] = str(ttr_s)
    return headers or None


def pri_of(headers: Mapping[str, str], priority: int) -> int:
    """Return beanstalk's priority of a message."""
    return _number(headers.get(PRI_HEADER), 0, MAX_U32, _USUAL[priority])


def ttr_s_of(headers: Mapping[str, str]) -> int:
    """Return the time to run of a message."""
    return _number(headers.get(TTR_HEADER), 1, MAX_TTR_S, DEFAULT_TTR_S)


def lease_ns_of(message: Message) -> int:
    """Return how long a lease of a message lasts: its time to run."""
    headers = message.headers
    return ttr_s_of(headers) * NS if headers else _DEFAULT_TTR_NS


def _number(text: str | None, low: int, high: int, default: int) -> int:
    """Return the number in a header, which any client may have set; the default if it is none."""
    if text is None or not text.isdecimal() or len(text) > 10:
        return default
    return min(max(int(text), low), high)


# -- what became of a job --------------------------------------------------------------------------

# The reasons that the history of a message shows.
RELEASED, BURIED, KICKED = "released (beanstalk)", "buried (beanstalk)", "kicked (beanstalk)"
