"""The Spark page lists every column, option and session setting of the code, and no other."""

import re

import pyarrow as pa

import penstock.client
import penstock.spark
import penstock.spark.jobs
from penstock.arrow.tables import COLUMNS, DEFAULT_COLUMNS
from penstock.spark.options import READ_OPTIONS, WRITE_OPTIONS
from penstock.spark.payloads.columns import DATA, ERROR, MODES
from penstock.spark.payloads.frames import (
    DROPPED_HEADER,
    ID_HEADER,
    QUEUE_HEADER,
    REASON_HEADER,
    SEQ_HEADER,
)
from penstock.spark.sessions import SETTINGS
from penstock.spark.tables import spark_schema
from tests.docs.pages import DOCS, Row, rows_with, tables, unquoted
from tests.docs.test_names import names_in

PAGE = "spark.md"
COLUMN_TABLES = [found for found in tables(PAGE) if {"column", "type", "what"} <= set(found[0])]
TABLES = dict(zip(("messages", "events", "state"), COLUMN_TABLES, strict=True))


def name_in(row: Row) -> str:
    return unquoted(row["column"].replace("**", ""))


def test_every_column_is_listed_with_its_type() -> None:
    for table, rows in TABLES.items():
        own = dict(COLUMNS[table])  # type: ignore[index]
        if table == "state":
            own = {name: kind for name, kind in own.items() if name not in COLUMNS["messages"]}
        listed = {name_in(row): row["type"] for row in rows}
        schema = spark_schema(pa.schema(own))
        assert listed == {one.name: one.dataType.simpleString() for one in schema.fields}


def test_default_columns_are_the_ones_in_bold() -> None:
    for table, rows in TABLES.items():
        bold = {name_in(row) for row in rows if row["column"].startswith("**")}
        if table == "state":
            bold |= {"seq", "timestamp", "priority", "key"}
        assert bold == set(DEFAULT_COLUMNS[table])  # type: ignore[index]


def test_every_option_is_listed() -> None:
    assert [unquoted(row["option"]) for row in rows_with(PAGE, "option", "default")] == list(
        READ_OPTIONS
    )
    listed = [unquoted(row["option of the sink"]) for row in rows_with(PAGE, "option of the sink")]
    assert listed == list(WRITE_OPTIONS)


def test_every_session_setting_is_listed() -> None:
    listed = dict(re.findall(r"^\| `([\w.]+)` = (\S+) \|", (DOCS / PAGE).read_text(), re.MULTILINE))
    assert listed == SETTINGS


def test_names_of_the_page_about_pipelines_exist() -> None:
    """Names of Spark and of settings have other tests, or none."""
    text = (DOCS / "spark-pipeline.md").read_text()
    named = set(re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)[`(]", text))
    known = names_in(penstock.spark) | names_in(penstock.spark.jobs) | names_in(penstock.client)
    known |= {*COLUMNS["messages"], DATA, ERROR, "archive_required"}
    of_others = {"from_json", "from_avro", "from_protobuf", "timestamp_ntz"}
    assert {name for name in named - known - of_others if not name.startswith("penstock_")} == set()
    options = set(re.findall(r"`((?:payload|max|min|starting)[A-Z]\w+)`", text))
    assert options and options <= set(READ_OPTIONS)
    headers = {REASON_HEADER, QUEUE_HEADER, SEQ_HEADER, ID_HEADER, DROPPED_HEADER}
    assert {unquoted(row["header"]) for row in rows_with("spark-pipeline.md", "header")} == headers
    modes = [
        unquoted(row["`payload_mode`"]) for row in rows_with("spark-pipeline.md", "`payload_mode`")
    ]
    assert modes == list(MODES)
