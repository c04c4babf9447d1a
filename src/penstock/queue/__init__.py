"""The queue: one state machine over a ledger, and the facade of the embedded library."""

from penstock.model import NewMessage, Published
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
