"""The broker: many queues of one store, for many clients."""

from penstock.broker.access import Caller
from penstock.broker.broker import Broker
from penstock.broker.charts import SERIES, Chart
from penstock.broker.embedded import EmbeddedStore
from penstock.broker.keys import Key, KeyEditor, Keys
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.overview import QUEUE_COLUMNS, Overview, QueuePage, QueueSummary, StorageState
from penstock.broker.settings import BrokerSettings
from penstock.broker.store import NamespaceInfo, Outcome, QueueInfo, Settlement, Store
from penstock.names import DEFAULT_NAMESPACE, QueueName, check_name
from penstock.operations import Verb
from penstock.queue.segments import StagedSegment
from penstock.queue.settings import SETTING_TYPES, QueueSettings, StorageSettings

__all__ = [
    "DEFAULT_NAMESPACE",
    "QUEUE_COLUMNS",
    "SERIES",
    "SETTING_TYPES",
    "Broker",
    "BrokerMetrics",
    "BrokerSettings",
    "Caller",
    "Chart",
    "EmbeddedStore",
    "Key",
    "KeyEditor",
    "Keys",
    "NamespaceInfo",
    "Outcome",
    "Overview",
    "QueueInfo",
    "QueueName",
    "QueuePage",
    "QueueSettings",
    "QueueSummary",
    "Settlement",
    "StagedSegment",
    "StorageSettings",
    "StorageState",
    "Store",
    "Verb",
    "check_name",
]
