"""The queue: one state machine over a ledger, and the facade of the embedded library."""

from pathlib import Path

from penstock.compiled import import_compiled_or_source
from penstock.model import NewMessage, Published

COMPILED = ("quick_drafts",)  # if there was a compiler
import_compiled_or_source(__name__, Path(__file__).parent, *COMPILED, variable="PENSTOCK_CODEC")

from penstock.queue.delivery import State
from penstock.queue.events import Event, EventType
from penstock.queue.queue import Queue
from penstock.queue.settings import QueueSettings, StorageSettings

__all__ = [
    "Event",
    "EventType",
    "NewMessage",
    "Published",
    "Queue",
    "QueueSettings",
    "State",
    "StorageSettings",
]
