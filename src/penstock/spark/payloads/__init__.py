"""Payloads as typed columns: JSON, Avro and Protobuf, and what is done about bad ones."""
