"""The Spark page lists every column, option and session setting of the code, and no other."""

import re

import pyarrow as pa

from penstock.arrow.tables import COLUMNS, DEFAULT_COLUMNS
from penstock.spark.options import READ_OPTIONS, WRITE_OPTIONS
from penstock.spark.sessions import SETTINGS
from penstock.spark.tables import spark_schema
from tests.docs.pages import DOCS, Row, rows_with, tables, unquoted

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
