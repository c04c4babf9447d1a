"""The queues at a place, whatever it is: a broker's URL or data directory, or one queue."""

from pathlib import Path
from urllib.parse import urlsplit

from penstock.cli.opening import looking
from penstock.cli.places import QueueRow, view_of
from penstock.client import ClientOptions, is_url
from penstock.errors import PenstockError
from penstock.ledger.manifest import MANIFEST_NAME


def rows_of(place: str) -> list[QueueRow]:
    """All queues that are there, with their counts."""
    if _is_one_queue(place):
        try:
            with looking(place) as queue:
                return [QueueRow(place, queue.stats())]
        except PenstockError as error:
            return [QueueRow(place, None, str(error))]
    view = view_of(place, ClientOptions(retry_s=0))  # whoever watches looks again anyway
    return view.rows(view.queues(None))


def _is_one_queue(place: str) -> bool:
    if is_url(place):
        return urlsplit(place).path.strip("/") != ""
    return (Path(place) / MANIFEST_NAME).exists()
