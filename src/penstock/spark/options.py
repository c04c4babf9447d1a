"""The options of the data source and the sink: typed and checked. An unknown option is an error.

Spark passes options as text, with names in lower case. Options that Kafka's source has too have the
same names.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from penstock.arrow.history import check_archive_choice
from penstock.arrow.selection import (
    AUTO,
    DEFAULT_PARTITION_BYTES,
    EARLIEST,
    LATEST,
    MAX_TIME_NS,
    TABLES,
    Offsets,
    Selection,
    Table,
    time_of_text,
)
from penstock.client.address import broker_address
from penstock.errors import InvalidInput
from penstock.spark.payloads.columns import DEFAULT_HEADER, PayloadOptions, mode_of
from penstock.spark.payloads.schemas import SchemaDirectory

_MIN_PARTITION_BYTES = 4096
_MAX_BYTES = 1 << 60
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20}
_UNITS |= {"g": 1 << 30, "gb": 1 << 30}

_DURATIONS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MS_NS = 1_000_000
_MAX_TIME_MS = MAX_TIME_NS // _MS_NS
_MIN_PLAIN_NS = 10**18  # in 2001; smaller numbers are not taken for nanoseconds
DEFAULT_TRIGGER_DELAY_S = 900.0  # the default of Kafka's source

READ_OPTIONS = (
    *("path", "url", "key", "queue", "subscribe", "subscribePattern", "table", "columns"),
    *("includeHeaders", "startingOffsets", "endingOffsets", "startingTimestamp"),
    *("endingTimestamp", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"),
    *("maxTriggerDelay", "minPartitions", "maxPartitionBytes", "failOnDataLoss", "verify"),
    *("decompress", "group", "payloadSchema", "payloadMode", "payloadSchemas"),
    *("payloadSchemaHeader", "payloadSchemaId", "archive", "archiveSecrets"),
)
_PAYLOAD_OPTIONS = tuple(name for name in READ_OPTIONS if name.startswith("payload"))
WRITE_OPTIONS = (
    *("path", "url", "key", "queue", "txnAppId", "txnVersion", "checkpointLocation", "queryName"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(Selection):
    """The options of a read."""

    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = DEFAULT_TRIGGER_DELAY_S
    payload_schema: str | None = None  # DDL, or the JSON of a StructType
    payload_options: PayloadOptions | None = None  # None: no option says how to decode

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "ReadOptions":
        """Return checked options. Raise InvalidInput for a wrong one."""
        options = _OptionParser(given, READ_OPTIONS)
        if options.has("path") == options.has("url"):
            raise InvalidInput(
                "give 'path' or 'url': 'path' is a queue's directory or a broker's data directory, "
                "as in .option('path', './orders'); 'url' is the address of a running broker"
            )
        ways = [name for name in ("queue", "subscribe", "subscribePattern") if options.has(name)]
        if len(ways) > 1:
            raise InvalidInput(f"give only one of {', '.join(ways)}")
        for end in ("starting", "ending"):
            if options.has(f"{end}Offsets") and options.has(f"{end}Timestamp"):
                raise InvalidInput(f"give {end}Offsets or {end}Timestamp, not both")
        least = options.whole("minOffsetsPerTrigger", 1, 1 << 60)
        most = options.whole("maxOffsetsPerTrigger", 1, 1 << 60)
        if least is not None and most is not None and least > most:
            raise InvalidInput(
                f"minOffsetsPerTrigger is {least}, which is more than maxOffsetsPerTrigger, {most}"
            )
        if options.has("maxTriggerDelay") and least is None:
            raise InvalidInput("maxTriggerDelay needs minOffsetsPerTrigger, for which it waits")
        first, last = options.offsets("startingOffsets"), options.offsets("endingOffsets")
        if isinstance(first, int) and isinstance(last, int) and first > last:
            raise InvalidInput(f"startingOffsets is {first}, which is after endingOffsets, {last}")
        since, until = options.time_ns("startingTimestamp"), options.time_ns("endingTimestamp")
        if since is not None and until is not None and since > until:
            raise InvalidInput(
                f"startingTimestamp is {options.text('startingTimestamp')}, which is later than "
                f"endingTimestamp, {options.text('endingTimestamp')}"
            )
        return cls(
            location=options.text("path") or options.url("url") or "",
            key=options.secret("key"),
            subscribe=options.names("queue") or options.names("subscribe") or (),
            subscribe_pattern=options.pattern("subscribePattern"),
            table=options.table("table"),
            columns=options.names("columns"),
            include_headers=options.switch("includeHeaders", default=False),
            starting_offsets=first,
            ending_offsets=last,
            starting_timestamp_ns=since,
            ending_timestamp_ns=until,
            max_offsets_per_trigger=most,
            max_bytes_per_trigger=options.size("maxBytesPerTrigger", 1),
            min_offsets_per_trigger=least,
            max_trigger_delay_s=options.duration_s("maxTriggerDelay", DEFAULT_TRIGGER_DELAY_S),
            min_partitions=options.whole("minPartitions", 1, 1_000_000) or 1,
            max_partition_bytes=options.size("maxPartitionBytes", _MIN_PARTITION_BYTES)
            or DEFAULT_PARTITION_BYTES,
            fail_on_data_loss=options.switch("failOnDataLoss", default=True),
            verify=options.switch("verify", default=True),
            decompress=options.switch("decompress", default=True),
            group=options.text("group"),
            archive=options.archive(),
            archive_variables=options.variables("archiveSecrets"),
            payload_schema=options.text("payloadSchema"),
            payload_options=options.payloads(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write."""

    path: str | None = None  # where the files are; None: only the broker can access them
    url: str | None = None  # a broker, which adopts what is staged
    key: str | None = field(default=None, repr=False)  # for that broker
    queue: str | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> "WriteOptions":
        options = _OptionParser(given, WRITE_OPTIONS)
        if not options.has("path") and not options.has("url"):
            raise InvalidInput(
                "give 'path' or 'url': 'path' is the queue's directory, or a broker's data "
                "directory with the option 'queue'; 'url' is the address of a running broker"
            )
        if options.has("txnAppId") != options.has("txnVersion"):
            raise InvalidInput(
                "give txnAppId and txnVersion together: the first names the job, the second rises "
                "with each run"
            )
        return cls(
            path=options.text("path"),
            url=options.url("url"),
            key=options.secret("key"),
            queue=options.text("queue"),
            txn_app_id=options.text("txnAppId"),
            txn_version=options.whole("txnVersion", 0, (1 << 63) - 1),
        )


class _OptionParser:
    """Parses options by their proper names."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        proper = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() == "paths":
                raise InvalidInput(
                    f"load takes one path, not {value}: read each and union them, or give the data "
                    f"directory that has them, with the option 'subscribe'"
                )
            if name.lower() not in proper:
                raise InvalidInput(_unknown(name, known))
            self._values[proper[name.lower()]] = str(value)

    def has(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not value.strip():
            raise InvalidInput(f"the option {name!r} is empty")
        return value

    def secret(self, name: str) -> str | None:
        """Return a text that no error message contains."""
        value = self.text(name)
        if value is not None and not (value.isascii() and value.isprintable()):
            raise InvalidInput(f"the option {name!r} has characters that API keys do not have")
        return value

    def variables(self, name: str) -> dict[str, str] | None:
        """Return a JSON object of texts. No error message contains it."""
        value = self.text(name)
        if value is None:
            return None
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(isinstance(one, str) for one in found.values()):
            raise InvalidInput(
                f"the option {name!r} is not a JSON object of texts, such as "
                '{"AWS_ACCESS_KEY_ID": "…", "AWS_SECRET_ACCESS_KEY": "…"}'
            )
        return found

    def url(self, name: str) -> str | None:
        value = self.text(name)
        return None if value is None else broker_address(value)

    def names(self, name: str) -> tuple[str, ...] | None:
        value = self.text(name)
        if value is None:
            return None
        names = tuple(part.strip() for part in value.split(",") if part.strip())
        if not names:
            raise InvalidInput(f"{name} is {value!r}; it must name at least one")
        return names

    def pattern(self, name: str) -> str | None:
        value = self.text(name)
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise InvalidInput(f"{name} is not a regular expression: {error}") from None
        return value

    def table(self, name: str) -> Table:
        value = self.text(name) or "messages"
        for table in TABLES:
            if table == value:
                return table
        raise InvalidInput(f"table is {value!r}; it must be one of {', '.join(TABLES)}")

    def switch(self, name: str, *, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise InvalidInput(f"{name} is {value!r}; it must be true or false")
        return value.lower() == "true"

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,19}", value) or not low <= int(value) <= high:
            raise InvalidInput(
                f"{name} is {value!r}; it must be a whole number from {low} to {high}"
            )
        return int(value)

    def size(self, name: str, low: int) -> int | None:
        """Return bytes, given as a number or with one of Spark's units: 64m, 1g."""
        value = self._values.get(name)
        if value is None:
            return None
        match = re.fullmatch(r"([0-9]{1,18}) *([a-z]*)", value.strip().lower())
        size = 0 if match is None else int(match[1]) * _UNITS.get(match[2], 0)
        if not low <= size <= _MAX_BYTES:
            raise InvalidInput(
                f"{name} is {value!r}; it must be from {low} to {_MAX_BYTES} bytes, as a number or "
                f"with a unit: 16m, 1g"
            )
        return size

    def duration_s(self, name: str, default: float) -> float:
        """Return seconds, given as a number or with one of Spark's units: 500ms, 30s, 15m."""
        value = self._values.get(name)
        if value is None:
            return default
        match = re.fullmatch(r"([0-9]{1,12}) *([a-z]*)", value.strip().lower())
        if match is None or match[2] not in _DURATIONS:
            raise InvalidInput(
                f"{name} is {value!r}; it must be a duration, in seconds or with a unit: 500ms, "
                f"30s, 15m, 1h"
            )
        return int(match[1]) * _DURATIONS[match[2]]

    def time_ns(self, name: str) -> int | None:
        """Return nanoseconds, given in ISO 8601 (UTC by default) or in milliseconds since 1970.

        A number with 19 digits is nanoseconds. Numbers in between would be microseconds, or times
        that no clock has: they are refused.
        """
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,19}", value):
            return time_of_text(name, value, ", or milliseconds since 1970")
        number = int(value)
        if number <= _MAX_TIME_MS:
            return number * _MS_NS
        if not _MIN_PLAIN_NS <= number <= MAX_TIME_NS:
            raise InvalidInput(
                f"{name} is {value}; a number is milliseconds since 1970, up to {_MAX_TIME_MS} "
                f"(the year 2262), or nanoseconds, from {_MIN_PLAIN_NS} to {MAX_TIME_NS}"
            )
        return number

    def archive(self) -> str:
        """Return the location of the archive to read on into, or `auto`, or `none`."""
        return check_archive_choice(
            self.text("archive") or AUTO,
            self.table("table"),
            decompress=self.switch("decompress", default=True),
        )

    def payloads(self) -> PayloadOptions | None:
        """Return how payloads are decoded; None if no option says so."""
        if not any(self.has(name) for name in _PAYLOAD_OPTIONS):
            return None
        if self.table("table") == "events":
            raise InvalidInput("the table 'events' has no payloads: leave payloadSchema out")
        if not self.switch("decompress", default=True):
            raise InvalidInput("payloadSchema needs the payloads as published: decompress is false")
        directory = self.text("payloadSchemas")
        if directory is None and (self.has("payloadSchemaHeader") or self.has("payloadSchemaId")):
            raise InvalidInput(
                "payloadSchemaHeader and payloadSchemaId need payloadSchemas, the directory of "
                "schemas"
            )
        return PayloadOptions(
            mode=mode_of(self.text("payloadMode") or "PERMISSIVE"),
            registry=None if directory is None else SchemaDirectory(directory),
            header=self.text("payloadSchemaHeader") or DEFAULT_HEADER,
            schema_id=self.text("payloadSchemaId"),
        )

    def offsets(self, name: str) -> Offsets | None:
        value = self.text(name)
        if value is None or value in (EARLIEST, LATEST):
            return value
        if re.fullmatch(r"[0-9]{1,19}", value) and int(value) < 1 << 63:
            return int(value)
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict) or not all(_is_seq(seq) for seq in parsed.values()):
            raise InvalidInput(
                f"{name} is {value!r}; it must be earliest, latest, a seq, or JSON with a seq "
                f'for each queue: {{"shop/orders": 4711}} (-2 is earliest, -1 is latest)'
            )
        return dict(parsed)


def _is_seq(seq: object) -> bool:
    return isinstance(seq, int) and not isinstance(seq, bool) and -2 <= seq < 1 << 63


# Options of Kafka's source and sink that have another name here, or are not needed.
_OF_KAFKA = {
    "kafka.bootstrap.servers": "give 'url', the address of a broker, or 'path', a directory",
    "kafka.group.id": "give 'group', the consumer group that follows the query",
    "groupidprefix": "give 'group', the consumer group that follows the query",
    "topic": "give 'queue'",
    "assign": "a queue has no partitions: name queues with 'subscribe'",
    "startingoffsetsbytimestamp": "give 'startingTimestamp'",
    "endingoffsetsbytimestamp": "give 'endingTimestamp'",
    "startingoffsetsbytimestampstrategy": "leave it out: a read starts at the next message",
    "maxrecordsperpartition": "give 'maxPartitionBytes'",
    "kafkaconsumer.polltimeoutms": "leave it out: messages are read from files",
    "fetchoffset.numretries": "leave it out: calls are tried again for two minutes",
    "fetchoffset.retryintervalms": "leave it out: calls are tried again for two minutes",
}


def _unknown(name: str, known: tuple[str, ...]) -> str:
    of_kafka = _OF_KAFKA.get(name.lower())
    if of_kafka is None and name.lower().startswith(("kafka.", "kafkaconsumer.")):
        of_kafka = "leave it out: there is no Kafka client to set"
    if of_kafka is not None:
        return f"there is no option {name!r}, which is one of Kafka's; {of_kafka}"
    proper = {option.lower(): option for option in known}
    near = [proper[n] for n in get_close_matches(name.lower(), list(proper), n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    return f"there is no option {name!r}; {hint}"
