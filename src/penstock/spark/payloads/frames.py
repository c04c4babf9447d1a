"""Typed payloads of any DataFrame, and bad records: told apart, and written to a queue."""

import json
from collections.abc import Iterator
from os import PathLike
from typing import Any
from warnings import catch_warnings, simplefilter

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, MapType, StringType, StructType

from penstock.arrow.locations import location_options
from penstock.arrow.selection import location_in
from penstock.errors import InvalidInput
from penstock.queue.drafting import MAX_HEADERS, MAX_HEADERS_BYTES
from penstock.spark.payloads.columns import (
    DATA,
    DEFAULT_HEADER,
    ERROR,
    PayloadDecoder,
    PayloadOptions,
    added_fields,
    fail_on_the_first,
    mode_of,
)
from penstock.spark.payloads.ddl import bad_schema, check_ddl
from penstock.spark.payloads.schemas import Registry, SchemaDirectory
from penstock.spark.payloads.values import arrow_type, check_payload_type
from penstock.spark.versions import HAS_ARROW_UDFS, VERSION, ArrowUDFType, arrow_udf

REASON_HEADER = "penstock-bad-reason"
QUEUE_HEADER = "penstock-bad-queue"
SEQ_HEADER = "penstock-bad-seq"
ID_HEADER = "penstock-bad-id"
DROPPED_HEADER = "penstock-bad-headers-dropped"
_KEPT = ("payload", "priority", "key", "content_type", "tenant")
_MADE = "penstock_decoded"  # a column that exists only while decoding
_OWN_HEADERS, _OWN_BYTES = 5, 4096  # what the headers above take at most


def payload_schema(schema: str | StructType) -> StructType:
    """Return a checked schema, given as a StructType, as its JSON, or as DDL.

    DDL needs a running Spark session.
    """
    if isinstance(schema, StructType):
        return check_payload_type(schema)
    if not isinstance(schema, str):
        raise InvalidInput(
            f"the schema of payloads is {schema!r}; it must be a StructType, its JSON, or DDL such "
            f"as 'id BIGINT, name STRING'"
        )
    if _is_json(schema):
        return check_payload_type(schema_of_json(schema))
    try:
        return check_payload_type(StructType.fromDDL(schema))
    except PySparkException as error:
        raise bad_schema(schema, str(error).strip().partition("\n")[0]) from None
    except Py4JJavaError as error:  # PySpark does not translate that of an unknown collation
        why = str(error.java_exception.getMessage()).strip().partition("\n")[0]
        raise bad_schema(schema, why) from None


def payload_schema_text(schema: str | StructType) -> str:
    """Return a schema as JSON or DDL, for an option. Only collations need a session."""
    if isinstance(schema, str) and not _is_json(schema):
        check_ddl(schema)
        if "COLLATE" in schema.upper():
            payload_schema(schema)  # only Spark knows all collations
        return schema
    return payload_schema(schema).json()


def _is_json(schema: str) -> bool:
    return schema.lstrip().startswith("{")


def schema_of_json(text: str) -> StructType:
    """Return a schema from `StructType.json()`. Raise InvalidInput."""
    try:
        return StructType.fromJson(json.loads(text))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        AssertionError,
        PySparkException,
    ) as error:
        raise bad_schema(text, f"{type(error).__name__}: {error}") from None


def decode_payloads(
    frame: DataFrame,
    schema: str | StructType,
    *,
    schemas: Registry | str | PathLike[str] | None = None,
    schema_header: str = DEFAULT_HEADER,
    schema_id: str | None = None,
    mode: str = "PERMISSIVE",
) -> DataFrame:
    """Return a frame with its payloads decoded: the columns `data` and `payload_error` are added.

    Args:
        frame: A batch or a stream with a column `payload`, binary or string.
        schema: Of the column `data`: a StructType, its JSON, or DDL such as "id BIGINT".
        schemas: Avro and Protobuf schemas: a directory, or a function from id to schema. The
            frame then needs the column `headers`. Without schemas, all payloads are JSON.
        schema_header: Header with the id of a payload's schema. Payloads without it are JSON.
        schema_id: Schema of payloads without that header.
        mode: PERMISSIVE: a bad payload is null, with the reason in `payload_error`.
            DROPMALFORMED: its row is left out. FAILFAST: the query fails.

    >>> orders = decode_payloads(frame, "id BIGINT, total DECIMAL(10, 2)")  # doctest: +SKIP
    """
    if not HAS_ARROW_UDFS:
        raise InvalidInput(
            f"decode_payloads needs PySpark 4.1 or newer, and this is {VERSION}: install it, or "
            f"decode while reading, with the option payloadSchema of the source"
        )
    type_ = payload_schema(schema)
    registry = (
        schemas
        if schemas is None or callable(schemas)
        else SchemaDirectory(location_in("schemas", schemas))
    )
    options = PayloadOptions(
        mode=mode_of(mode), registry=registry, header=schema_header, schema_id=schema_id
    )
    options.check()
    _check_columns(frame, options)
    made = StructType(added_fields(type_, "PERMISSIVE"))

    def decode(columns: Iterator[Any]) -> Iterator[pa.Array]:
        decoder = PayloadDecoder(type_, options)
        for payloads, headers in columns:
            found = decoder.decode(payloads, headers)
            if options.mode == "FAILFAST":
                fail_on_the_first(found)
            reasons = pa.array(found.reasons, pa.string())
            fields = list(arrow_type(made))
            yield pa.StructArray.from_arrays([found.data, reasons], fields=fields)

    with catch_warnings():
        # Spark prefers type hints, for which it needs pandas, as `mapInArrow` does.
        simplefilter("ignore", UserWarning)
        make: Any = arrow_udf  # its type hints do not have structs
        udf = make(decode, made, ArrowUDFType.SCALAR_ITER)
    # Otherwise a filter on the result decodes twice.
    udf = udf.asNondeterministic()
    # Without schemas, headers are only for the reasons of bad payloads.
    headers = f.col("headers") if _has_headers(frame) else f.lit(None).cast("map<string,string>")
    result = frame.withColumn(_MADE, udf(f.col("payload"), headers))
    added = {DATA: f.col(f"{_MADE}.{DATA}"), ERROR: f.col(f"{_MADE}.{ERROR}")}
    result = result.withColumns(added).drop(_MADE)
    if options.mode == "DROPMALFORMED":
        result = result.where(f.col(ERROR).isNull())
    return result if options.mode == "PERMISSIVE" else result.drop(ERROR)


def _check_columns(frame: DataFrame, options: PayloadOptions) -> None:
    types = {one.name: one.dataType for one in frame.schema.fields}
    for name in (DATA, ERROR):
        if name in types:
            raise InvalidInput(f"the frame has a column {name!r} already: rename or drop it")
    if not isinstance(types.get("payload"), BinaryType | StringType):
        raise InvalidInput(
            f"decoding needs a column 'payload', binary or string; the frame has "
            f"{', '.join(types) or 'no column'}"
        )
    if options.registry is not None and not _has_headers(frame):
        raise InvalidInput(
            "schemas are found by a header: the frame needs the column 'headers', "
            "map<string,string> (option includeHeaders of the source)"
        )


def _has_headers(frame: DataFrame) -> bool:
    type_ = next((one.dataType for one in frame.schema.fields if one.name == "headers"), None)
    return (
        isinstance(type_, MapType)
        and isinstance(type_.keyType, StringType)
        and isinstance(type_.valueType, StringType)
    )


# -- bad records -----------------------------------------------------------------------------------


def good_records(frame: DataFrame) -> DataFrame:
    """Return the rows whose payload was decoded, without the column `payload_error`."""
    _check_decoded(frame)
    return frame.where(f.col(ERROR).isNull()).drop(ERROR)


def bad_records(frame: DataFrame, *, queue: str | None = None) -> DataFrame:
    """Return the rows with a bad payload as messages for the sink: a batch, or a stream.

    Each keeps its payload, key, priority, content type, tenant and headers, as far as the frame has
    them.
    Headers say why it is bad (`penstock-bad-reason`) and where it comes from
    (`penstock-bad-queue`, `penstock-bad-seq`, `penstock-bad-id`). `queue` names the origin if the
    frame has no column `queue`.
    """
    _check_decoded(frame)
    names = frame.columns
    if "payload" not in names:
        raise InvalidInput("bad records keep their payload: read the column 'payload' as well")
    kept = [f.col(name) for name in _KEPT if name in names]
    return frame.where(f.col(ERROR).isNotNull()).select(
        *kept, _headers(names, queue).alias("headers")
    )


def dead_letter(
    batch: DataFrame,
    location: str | PathLike[str],
    *,
    queue: str | None = None,
    app: str,
    version: int,
    source: str | None = None,
    key: str | None = None,
) -> DataFrame:
    """Write the bad records of a batch to a queue, and return the good ones. For `foreachBatch`.

    A version of an application is written once: give a name of the query and the batch id.

    Args:
        batch: A decoded batch. Persist it if its good records are used as well: otherwise Spark
            reads and decodes it twice.
        location: Directory or URL of the queue for bad records, or of its broker.
        queue: Queue at that location.
        app: Name of the job or query. It must not be that of another job that writes there.
        version: Number of the batch or run; it rises.
        source: Name of the queue that was read, if the batch has no column `queue`.
        key: API key for a broker, with the right `publish`.

    >>> def process(batch, batch_id):
    ...     batch.persist()
    ...     good = dead_letter(batch, "./bad-orders", app="orders", version=batch_id)
    ...     good.select("data.*").write.mode("append").parquet("./orders.parquet")
    ...     batch.unpersist()
    """
    if batch.isStreaming:
        raise InvalidInput(
            "dead_letter takes a batch: call it in foreachBatch, or write bad_records(stream) with "
            "writeStream"
        )
    options = location_options(location_in("location", location), queue)
    if key is not None:
        options["key"] = key
    writer = bad_records(batch, queue=source).write.format("penstock").mode("append")
    writer.options(**options).option("txnAppId", app).option("txnVersion", str(version)).save()
    return good_records(batch)


def _check_decoded(frame: DataFrame) -> None:
    if ERROR not in frame.columns:
        raise InvalidInput(
            f"the frame has no column {ERROR!r}: read it with the option payloadSchema, or use "
            f"decode_payloads, in the mode PERMISSIVE"
        )


def _headers(names: list[str], queue: str | None) -> Column:
    """Return the headers of a bad record: its own, as far as there is room, and the reason."""
    own = [f.lit(REASON_HEADER), f.col(ERROR)]
    origin = f.lit(queue) if queue is not None else None
    if origin is None and "queue" in names:
        parts = [f.col("namespace")] if "namespace" in names else []
        origin = f.concat_ws("/", *parts, f.col("queue"))
    if origin is not None:
        own += [f.lit(QUEUE_HEADER), origin]
    for name, header in (("seq", SEQ_HEADER), ("id", ID_HEADER)):
        if name in names:
            own += [f.lit(header), f.col(name).cast("string")]
    added = f.create_map(*own)
    if "headers" not in names:
        return added
    # A record that was dead-lettered before: the new reason counts.
    before = f.map_filter(
        f.coalesce(f.col("headers"), f.create_map().cast("map<string,string>")),
        lambda name, _: ~name.startswith("penstock-bad-"),
    )
    size = f.aggregate(
        f.map_entries(before),
        f.lit(0),
        lambda total, pair: (
            total
            + f.octet_length(pair["key"])
            + f.coalesce(f.octet_length(pair["value"]), f.lit(0))
        ),
    )
    fits = (f.size(before) <= MAX_HEADERS - _OWN_HEADERS) & (size <= MAX_HEADERS_BYTES - _OWN_BYTES)
    dropped = f.create_map(f.lit(DROPPED_HEADER), f.size(before).cast("string"))
    return f.when(fits, f.map_concat(before, added)).otherwise(f.map_concat(added, dropped))
