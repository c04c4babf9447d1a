"""The broker: many queues, many clients, one door."""

from penstock.broker.access import Caller, Verb
from penstock.broker.broker import Broker
from penstock.broker.embedded import EmbeddedStore
from penstock.broker.keys import Key, KeyFile, Keys
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.names import QueueName
from penstock.broker.segments import StagedSegment
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import (
    Browse,
    DeadFilter,
    DeadPage,
    NamespaceInfo,
    Outcome,
    Page,
    Place,
    QueueInfo,
    Row,
    Settlement,
    Store,
)
from penstock.names import DEFAULT_NAMESPACE, check_name
from penstock.queue.settings import QueueSettings

__all__ = [
    "DEFAULT_NAMESPACE",
    "Broker",
    "BrokerMetrics",
    "BrokerSettings",
    "Browse",
    "Caller",
    "DeadFilter",
    "DeadPage",
    "EmbeddedStore",
    "Key",
    "KeyFile",
    "Keys",
    "NamespaceInfo",
    "Outcome",
    "Page",
    "Place",
    "QueueInfo",
    "QueueName",
    "QueueSettings",
    "Row",
    "Settlement",
    "StagedSegment",
    "Store",
    "Verb",
    "check_name",
]
