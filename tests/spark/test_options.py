"""Options are checked, all of them; what is wrong is said with what would be right."""

import json

import pytest

from penstock.arrow.tables import ALIASES, COLUMNS, DEFAULT_COLUMNS, schema_of
from penstock.errors import InvalidInput
from penstock.spark.options import READ_OPTIONS, ReadOptions, WriteOptions
from penstock.spark.sessions import archive_secrets


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give 'path' or 'url'"),
        ({"path": "x", "url": "http://h"}, "give 'path' or 'url'"),
        ({"url": "ftp://h"}, "not the URL of a broker"),
        ({"url": "http://user:secret@h"}, "no user or password"),
        ({"url": "http://h", "key": "sécret"}, "characters that API keys do not have"),
        ({"path": " "}, "'path' is empty"),
        ({"path": "x", "startingOffset": "latest"}, "did you mean startingOffsets"),
        ({"path": "x", "kafka.bootstrap.servers": "y"}, "there is no option"),
        ({"path": "x", "queue": "a", "subscribe": "b"}, "only one of queue, subscribe"),
        ({"path": "x", "subscribePattern": "("}, "not a regular expression"),
        ({"path": "x", "table": "message"}, "one of messages, events, state"),
        ({"path": "x", "verify": "no"}, "must be true or false"),
        ({"path": "x", "minPartitions": "0"}, "whole number from 1"),
        ({"path": "x", "maxOffsetsPerTrigger": "-1"}, "whole number from 1"),
        ({"path": "x", "maxPartitionBytes": "12"}, "from 4096 to 1152921504606846976 bytes"),
        ({"path": "x", "maxPartitionBytes": str((1 << 63) - 1)}, "from 4096 to 115292150460684697"),
        ({"path": "x", "maxPartitionBytes": "2000000000g"}, "from 4096 to 115292150460684697"),
        ({"path": "x", "maxBytesPerTrigger": "1 parsec"}, "with a unit"),
        ({"path": "x", "maxTriggerDelay": "1m"}, "needs minOffsetsPerTrigger"),
        (
            {"path": "x", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"},
            "must be a duration",
        ),
        (
            {"path": "x", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "more than maxOffsetsPerTrigger",
        ),
        ({"path": "x", "startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"path": "x", "startingOffsets": "first"}, "earliest, latest, a seq, or JSON"),
        ({"path": "x", "startingOffsets": "-1"}, "earliest, latest, a seq, or JSON"),
        ({"path": "x", "startingOffsets": '{"a": -3}'}, "earliest, latest, a seq, or JSON"),
        ({"path": "x", "startingOffsets": '{"a": true}'}, "earliest, latest, a seq, or JSON"),
        ({"path": "x", "startingOffsets": "5", "endingOffsets": "4"}, "after endingOffsets"),
        ({"path": "x", "startingTimestamp": "5", "endingTimestamp": "4"}, "is later than"),
        ({"path": "x", "paths": '["a", "b"]'}, "load takes one path"),
        ({"path": "x", "subscribe": " , "}, "at least one"),
        ({"path": "x", "columns": ","}, "at least one"),
        (
            {"path": "x", "startingOffsets": "latest", "startingTimestamp": "0"},
            "startingOffsets or startingTimestamp",
        ),
    ],
)
def test_a_bad_option_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ReadOptions.parse({name.lower(): value for name, value in given.items()})


def test_good_options_are_understood() -> None:
    options = ReadOptions.parse(
        {
            "path": "x",
            "subscribe": "a/b, c/d",
            "maxpartitionbytes": "16m",
            "startingtimestamp": "2026-01-31T12:00:00+01:00",
            "endingtimestamp": "1800000000000",
            "failondataloss": "False",
            "columns": "seq, payload",
        }
    )
    assert options.subscribe == ("a/b", "c/d")
    assert options.max_partition_bytes == 16 << 20
    assert options.starting_timestamp_ns == 1_769_857_200_000_000_000
    assert options.ending_timestamp_ns == 1_800_000_000_000_000_000
    assert not options.fail_on_data_loss
    assert options.columns == ("seq", "payload")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give 'path' or 'url'"),
        ({"path": "x", "txnAppId": "a"}, "give txnAppId and txnVersion together"),
        ({"path": "x", "txnAppId": "a", "txnVersion": "one"}, "whole number"),
        ({"path": "x", "mode": "append"}, "there is no option 'mode'"),
    ],
)
def test_a_bad_option_of_the_sink_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        WriteOptions.parse(given)


def test_no_text_of_options_has_the_key_in_it() -> None:
    given = {"url": "http://h", "key": "psk_secret"}
    assert "psk_secret" not in repr(ReadOptions.parse(given))
    assert "psk_secret" not in repr(WriteOptions.parse({**given, "queue": "a/b"}))


def test_every_option_has_one_name_whatever_its_case() -> None:
    assert len({name.lower() for name in READ_OPTIONS}) == len(READ_OPTIONS)


def test_columns_are_those_of_the_table() -> None:
    for table, names in DEFAULT_COLUMNS.items():
        assert set(names) <= set(COLUMNS[table])
        every = schema_of(table, ["*"], several_queues=False, include_headers=False)
        assert every.names == [name for name in COLUMNS[table] if name not in ALIASES]
    with_headers = schema_of("messages", None, several_queues=False, include_headers=True)
    assert "headers" in with_headers.names
    for columns, said in ((["sequence"], "did you mean"), (["seq", "seq"], "twice")):
        with pytest.raises(InvalidInput, match=said):
            schema_of("messages", columns, several_queues=False, include_headers=False)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("kafka.bootstrap.servers", "give 'url'"),
        ("assign", "no partitions"),
        ("startingOffsetsByTimestamp", "give 'startingTimestamp'"),
        ("kafka.security.protocol", "leave it out"),
        ("groupIdPrefix", "give 'group'"),
    ],
)
def test_options_of_kafka_are_answered_with_what_to_write(option: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ReadOptions.parse({"path": "orders", option.lower(): "x"})


def test_the_topic_of_a_write_is_the_queue() -> None:
    with pytest.raises(InvalidInput, match="give 'queue'"):
        WriteOptions.parse({"path": "orders", "topic": "x"})


def test_secrets_of_an_archive_are_an_option_that_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    (given,) = archive_secrets(None).items()
    assert json.loads(given[1])["AWS_SECRET_ACCESS_KEY"] == "hush"
    assert archive_secrets("none") == {}
    options = ReadOptions.parse({"path": "q", given[0].lower(): given[1]})
    assert options.archive_variables is not None
    assert options.archive_variables["AWS_SECRET_ACCESS_KEY"] == "hush"
    assert "hush" not in repr(options)
    for wrong in ("hush", "[]", '{"A": 1}'):
        with pytest.raises(InvalidInput, match="not a JSON object of texts") as caught:
            ReadOptions.parse({"path": "q", "archiveSecrets": wrong})
        assert "hush" not in str(caught.value)
