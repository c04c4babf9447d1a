"""The columns `data` and `payload_error`: payloads decoded in tasks, a batch of rows at a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import InvalidInput, PenstockError
from penstock.spark.payloads.schemas import (
    Decode,
    Registry,
    SchemaDirectory,
    decoder_of,
    is_id,
    json_decoder,
)
from penstock.spark.payloads.values import (
    BadPayload,
    Converter,
    arrow_type,
    check_payload_type,
    converter_of,
    has_decimals,
)

DATA, ERROR = "data", "payload_error"
Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
MODES: tuple[Mode, ...] = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
DEFAULT_HEADER = "schema-id"
MAX_REASON = 500  # characters
_MAX_DECODERS = 1000


class MalformedPayload(PenstockError):
    """A payload is not what its schema says, and the mode is FAILFAST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadOptions:
    """How payloads are decoded. Pickled to the tasks."""

    mode: Mode = "PERMISSIVE"
    registry: Registry | None = None  # None: all payloads are JSON
    header: str = DEFAULT_HEADER  # holds the id of a payload's schema
    schema_id: str | None = None  # of messages without that header; None: they are JSON

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidInput(f"the mode is {self.mode!r}; it must be one of {', '.join(MODES)}")
        if self.schema_id is not None:
            if self.registry is None:
                raise InvalidInput("a schema id needs the schemas that it is one of")
            if not is_id(self.schema_id):
                raise InvalidInput(
                    f"the schema id is {self.schema_id!r}; it must be 1 to 64 letters, digits, _ "
                    f"and -"
                )
        if not self.header:
            raise InvalidInput("the name of the header with the schema id is empty")

    def check(self) -> None:
        """Raise InvalidInput for schemas that cannot be used, before a job meets them."""
        if isinstance(self.registry, SchemaDirectory):
            self.registry.check()
        if self.schema_id is not None and self.registry is not None:
            schema = self.registry(self.schema_id)
            if schema is None:
                raise InvalidInput(f"there is no schema with the id {self.schema_id!r}")
            decoder_of(schema)

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns of messages from which payloads are decoded.

        Without schemas, the headers are for the reasons of bad payloads.
        """
        return ("payload", "headers")


def mode_of(text: str) -> Mode:
    """Return a mode, which may be written in small letters."""
    for mode in MODES:
        if isinstance(text, str) and mode == text.upper():
            return mode
    raise InvalidInput(f"the mode is {text!r}; it must be one of {', '.join(MODES)}")


def added_fields(data: StructType, mode: Mode) -> list[StructField]:
    """Return the columns that decoding adds: reasons only if there are rows with them."""
    fields = [StructField(DATA, data, nullable=True)]
    if mode == "PERMISSIVE":
        fields.append(StructField(ERROR, StringType(), nullable=True))
    return fields


@dataclass(frozen=True, slots=True)
class Decoded:
    """The payloads of a batch."""

    data: pa.Array
    reasons: Sequence[str | None]

    @property
    def good(self) -> pa.Array:
        return pa.array([reason is None for reason in self.reasons], pa.bool_())


class PayloadDecoder:
    """Decodes payloads into a struct. One per task."""

    def __init__(self, type_: StructType, options: PayloadOptions) -> None:
        self._type = arrow_type(check_payload_type(type_))
        self._options = options
        self._convert: Converter = converter_of(type_)
        self._json = json_decoder(decimals=has_decimals(type_))
        self._decoders: dict[str, Decode] = {}

    def decode(self, payloads: pa.Array, headers: pa.Array | None) -> Decoded:
        """Return the payloads as values of the schema; null, with a reason, for a bad one.

        `headers` may be None if there are no schemas.
        """
        values: list[Any] = []
        reasons: list[str | None] = []
        unknown: set[str] = set()  # ids; asked for again with the next batch
        rows: list[Any] = [None] * len(payloads)
        if self._options.registry is not None and headers is not None:
            rows = headers.to_pylist()
        for payload, pairs in zip(payloads.to_pylist(), rows, strict=True):
            try:
                values.append(self._value(payload, pairs, unknown))
                reasons.append(None)
            except BadPayload as bad:
                values.append(None)
                reasons.append(str(bad)[:MAX_REASON])
            except RecursionError:
                values.append(None)
                reasons.append("the payload is nested too deeply")
        data = self._array(values, reasons)
        if self._options.registry is None and headers is not None:
            self._name_schemas(headers, reasons)
        return Decoded(data, reasons)

    def _name_schemas(self, headers: pa.Array, reasons: list[str | None]) -> None:
        """Add to the reasons that a header names a schema, and that no schemas are given."""
        header = self._options.header
        for row, reason in enumerate(reasons):
            if reason is None:
                continue
            schema_id = dict(headers[row].as_py() or ()).get(header)
            if schema_id:
                reasons[row] = (
                    f"the header {header!r} names the schema {_shown(schema_id)}, and no schemas "
                    f"are given: give their directory as payload_schemas (option payloadSchemas). "
                    f"Read as JSON: {reason}"
                )[:MAX_REASON]

    def _value(self, payload: Any, pairs: Any, unknown: set[str]) -> Any:
        if payload is None:
            raise BadPayload("the payload is null")
        decode = self._json if self._options.registry is None else self._decoder(pairs, unknown)
        value = decode(payload.encode() if isinstance(payload, str) else payload)
        if value is None:
            raise BadPayload("the payload is null, not an object")
        return self._convert(value)

    def _decoder(self, pairs: Any, unknown: set[str]) -> Decode:
        header = self._options.header
        schema_id = dict(pairs or ()).get(header) or self._options.schema_id
        if schema_id is None:
            return self._json
        found = self._decoders.get(schema_id)
        if found is not None:
            return found
        registry = self._options.registry
        schema = None if schema_id in unknown or registry is None else registry(schema_id)
        if schema is None:
            unknown.add(schema_id)
            raise BadPayload(
                f"there is no schema with the id {_shown(schema_id)} (header {header!r})"
            )
        if len(self._decoders) >= _MAX_DECODERS:
            self._decoders.clear()
        found = self._decoders[schema_id] = decoder_of(schema)
        return found

    def _array(self, values: list[Any], reasons: list[str | None]) -> pa.Array:
        try:
            return pa.array(values, self._type)
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            pass  # a value that Arrow does not take, such as half of a surrogate pair
        for row, value in enumerate(values):
            try:
                pa.array([value], self._type)
            except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
                values[row] = None
                reasons[row] = f"a value cannot be stored ({type(error).__name__})"
        return pa.array(values, self._type)


def _shown(schema_id: str) -> str:
    return schema_id if is_id(schema_id) else f"of {len(schema_id)} characters"


# -- batches ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PayloadColumns:
    """Adds the columns of payloads to batches of a table, and takes out what was not asked for."""

    schema: pa.Schema  # of the result, in this order
    type: StructType
    options: PayloadOptions

    def source_names(self) -> list[str]:
        """Return the columns to read: those asked for, and those that decoding needs."""
        own = [name for name in self.schema.names if name not in (DATA, ERROR)]
        seq = ("seq",) if self.options.mode == "FAILFAST" else ()
        return [*own, *(name for name in (*self.options.needed, *seq) if name not in own)]

    def add(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = PayloadDecoder(self.type, self.options)
        for batch in batches:
            made = self._with_payloads(batch, decoder)
            if made.num_rows:
                yield made

    def _with_payloads(self, batch: pa.RecordBatch, decoder: PayloadDecoder) -> pa.RecordBatch:
        columns: Mapping[str, pa.Array] = dict(zip(batch.schema.names, batch.columns, strict=True))
        found = decoder.decode(columns["payload"], columns["headers"])
        if self.options.mode == "FAILFAST":
            fail_on_the_first(found, columns["seq"])
        made = {
            **columns,
            DATA: found.data,
            ERROR: pa.array(found.reasons, pa.string()),
        }
        arrays = [made[name] for name in self.schema.names]
        result = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return result.filter(found.good) if self.options.mode == "DROPMALFORMED" else result


def fail_on_the_first(found: Decoded, seqs: pa.Array | None = None) -> None:
    """Raise MalformedPayload if a payload is bad."""
    for row, reason in enumerate(found.reasons):
        if reason is not None:
            where = "" if seqs is None else f"seq {seqs[row].as_py()}: "
            raise MalformedPayload(
                f"{where}{reason}. The mode is FAILFAST: with PERMISSIVE bad payloads are null, "
                f"with the reason in {ERROR!r}."
            )
