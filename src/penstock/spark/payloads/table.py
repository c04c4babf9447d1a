"""The tables of the source with the columns of payloads: their schema, and their batches."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from penstock.arrow.history import relaxed
from penstock.arrow.locations import QueueLocation
from penstock.arrow.selection import Table
from penstock.arrow.tables import COLUMNS, schema_of
from penstock.errors import InvalidInput
from penstock.spark.options import ReadOptions
from penstock.spark.payloads.columns import DATA, ERROR, PayloadColumns, PayloadOptions
from penstock.spark.payloads.ddl import check_ddl
from penstock.spark.payloads.frames import schema_of_json
from penstock.spark.payloads.values import arrow_type, check_payload_type
from penstock.spark.tables import arrow_schema, check_schema, spark_schema

_ADDED = (DATA, ERROR)
ReadBatches = Callable[[pa.Schema], Iterator[pa.RecordBatch]]


def table_schema(options: ReadOptions, queues: Sequence[QueueLocation]) -> StructType | str:
    """Return the schema of a read. It is DDL if the schema of payloads is: only Spark parses it."""
    names = options.columns
    if options.payload_schema is None:
        _refuse_added(names)
        return spark_schema(_plain_schema(options, names, queues))
    options_of(options).check()
    own = None if names is None else tuple(name for name in names if name not in _ADDED)
    plain = spark_schema(_plain_schema(options, own, queues)) if own != () else StructType()
    wanted = list(names or ())
    if names is None or names == ("*",):
        wanted = [*plain.fieldNames(), DATA]
        if options_of(options).mode == "PERMISSIVE":
            wanted.append(ERROR)
    if len(set(wanted)) < len(wanted):
        raise InvalidInput(f"the option 'columns' names a column twice: {', '.join(wanted)}")
    if options.payload_schema.lstrip().startswith("{"):
        data = check_payload_type(schema_of_json(options.payload_schema))
        fields = {one.name: one for one in plain.fields}
        fields |= {DATA: StructField(DATA, data), ERROR: StructField(ERROR, StringType())}
        return StructType([fields[name] for name in wanted])
    check_ddl(options.payload_schema)
    texts = {one.name: _ddl(one) for one in plain.fields}
    texts |= {DATA: f"`{DATA}` STRUCT<{options.payload_schema}>", ERROR: f"`{ERROR}` STRING"}
    return ", ".join(texts[name] for name in wanted)


def _plain_schema(
    options: ReadOptions, columns: Sequence[str] | None, queues: Sequence[QueueLocation]
) -> pa.Schema:
    schema = schema_of(
        options.table,
        columns,
        several_queues=len(queues) > 1 or options.subscribe_pattern is not None,
        include_headers=options.include_headers,
    )
    return relaxed(schema, options, queues)


def _ddl(field: StructField) -> str:
    return f"`{field.name}` {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"


def _refuse_added(names: Sequence[str] | None) -> None:
    for name in names or ():
        if name in _ADDED:
            raise InvalidInput(
                f"the column {name!r} needs the option payloadSchema, which says what payloads are"
            )


def options_of(options: ReadOptions) -> PayloadOptions:
    return options.payload_options or PayloadOptions()


def check_table_schema(options: ReadOptions, schema: StructType) -> None:
    """Raise InvalidInput for a schema that is not of the table's columns and those of payloads."""
    check_schema(options.table, _without_added(schema))
    data = payload_type(schema)
    if data is None:
        if options.payload_options is not None or ERROR in schema.fieldNames():
            raise InvalidInput(
                f"payloads are decoded into the column {DATA!r}, which the schema lacks: give it "
                f"there as a struct, or leave the payload options out"
            )
        return
    check_payload_type(data)
    if options.table == "events":
        raise InvalidInput("the table 'events' has no payloads")
    if ERROR in schema.fieldNames():
        field = schema[ERROR]
        if not isinstance(field.dataType, StringType) or not field.nullable:
            raise InvalidInput(f"the column {ERROR!r} is a string, and can be null")
        if options_of(options).mode != "PERMISSIVE":
            raise InvalidInput(
                f"the column {ERROR!r} is always null in the mode {options_of(options).mode}: "
                f"leave it out"
            )
    if not schema[DATA].nullable:
        raise InvalidInput(f"the column {DATA!r} can be null: leave nullable=False out")


def payload_type(schema: StructType) -> Any:
    """Return the type of the column of payloads; None if the schema has none."""
    return schema[DATA].dataType if DATA in schema.fieldNames() else None


def _without_added(schema: StructType) -> StructType:
    return StructType([one for one in schema.fields if one.name not in _ADDED])


def read_typed(
    schema: StructType, options: ReadOptions, read: ReadBatches
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task. `read` yields those of the table's own columns."""
    data = payload_type(schema)
    if data is None:
        yield from read(arrow_schema(schema))
        return
    wanted = pa.schema(
        [
            pa.field(one.name, arrow_type(one.dataType), one.nullable)
            if one.name in _ADDED
            else arrow_schema(StructType([one])).field(0)
            for one in schema.fields
        ]
    )
    columns = PayloadColumns(wanted, data, options_of(options))
    yield from columns.add(read(_source_schema(options.table, wanted, columns.source_names())))


def _source_schema(table: Table, wanted: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the schema to read: columns that only decoding needs have their usual types."""
    return pa.schema(
        [
            wanted.field(name) if name in wanted.names else pa.field(name, COLUMNS[table][name])
            for name in names
        ]
    )
