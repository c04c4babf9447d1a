"""The tables with Spark's types."""

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.arrow.selection import Table
from penstock.arrow.tables import COLUMNS, NEVER_NULL, TIME, no_column
from penstock.errors import InvalidInput

_SPARK: dict[pa.DataType, DataType] = {
    pa.string(): StringType(),
    pa.int64(): LongType(),
    TIME: TimestampType(),
    pa.int8(): ByteType(),
    pa.int32(): IntegerType(),
    pa.binary(): BinaryType(),
    pa.map_(pa.string(), pa.string()): MapType(StringType(), StringType()),
    pa.map_(pa.int32(), pa.binary()): MapType(IntegerType(), BinaryType()),
}
_ARROW = {spark: arrow for arrow, spark in _SPARK.items()}


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the schema of a table as Spark knows it."""
    return StructType([StructField(f.name, _SPARK[f.type], f.nullable) for f in schema])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of a batch."""
    return pa.schema(
        [pa.field(f.name, _ARROW[f.dataType], nullable=f.nullable) for f in schema.fields]
    )


def check_schema(table: Table, schema: StructType) -> None:
    """Raise InvalidInput for a schema that does not consist of the table's columns."""
    types = COLUMNS[table]
    for field in schema.fields:
        if field.name not in types:
            raise InvalidInput(no_column(field.name, table))
        if field.dataType != _SPARK[types[field.name]]:
            wanted = _SPARK[types[field.name]].simpleString()
            raise InvalidInput(
                f"the column {field.name!r} of {table} is {wanted}, not "
                f"{field.dataType.simpleString()}: read it as {wanted} and cast it in the query"
            )
        if not field.nullable and field.name not in NEVER_NULL[table]:
            raise InvalidInput(
                f"the column {field.name!r} of {table} can be null: leave nullable=False out"
            )
