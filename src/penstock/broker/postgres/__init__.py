"""The PostgreSQL store: several brokers on one replicated database."""

from penstock.broker.postgres.store import ClusterOptions, PostgresStore

__all__ = ["ClusterOptions", "PostgresStore"]
