"""The embedded store: queues in a directory of this machine."""

from penstock.broker.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore"]
