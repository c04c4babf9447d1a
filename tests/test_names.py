"""Names, and the directories they get: one rule for every interface."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.names import PATTERN, check_name, directory_of, is_name, name_of_directory

names = st.from_regex(re.compile(PATTERN, re.ASCII), fullmatch=True)
near_names = st.text(alphabet="aZ09-_./+ \n\0éKſ", max_size=66)


@pytest.mark.parametrize(
    "name", ["_health_check", "email_jobs", "Emails", "my.queue", "a", "_", "A" * 64, "a..b", "a-"]
)
def test_names_of_all_dialects_are_names(name: str) -> None:
    for what in ("namespace", "queue", "group"):
        assert check_name(what, name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".a", "-a", "a.", "a/b", "a\\b", "a" * 65, "a b", "a\n", "a\0", "é", "a+b", 1],
)
def test_what_is_not_a_name_is_refused(name: object) -> None:
    with pytest.raises(InvalidInput, match="is not a queue name"):
        check_name("queue", name)


@pytest.mark.parametrize("name", ["orders.dlq", "__dlq__orders", "__dlq__", "a.dlq"])
def test_the_views_of_dead_letters_are_no_names_of_queues(name: str) -> None:
    with pytest.raises(InvalidInput, match="kept for the dead letters"):
        check_name("queue", name)
    assert check_name("group", name) == name


@given(near_names)
def test_the_pattern_says_what_the_check_says(name: str) -> None:
    """As in OpenAPI, where the pattern is anchored."""
    shown = re.search(f"^{PATTERN}$", name, re.ASCII) is not None and not name.endswith("\n")
    assert is_name("group", name) == shown


@given(names)
def test_a_name_comes_back_from_its_directory(name: str) -> None:
    assert name_of_directory(directory_of(name)) == name


@given(names, names)
def test_directories_differ_also_where_case_is_ignored(one: str, other: str) -> None:
    assert (directory_of(one).casefold() == directory_of(other).casefold()) == (one == other)
    assert (directory_of(one.swapcase()) == directory_of(one)) == (one.swapcase() == one)


@given(names)
def test_a_directory_is_safe_on_every_file_system(name: str) -> None:
    directory = directory_of(name)
    assert re.fullmatch(r"[a-z0-9+][a-z0-9+_-]*", directory)
    assert len(directory) <= 128
    assert directory not in ("namespace.json", "LOCK", "_broker", "_trash")


@given(st.from_regex(re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII), fullmatch=True))
def test_a_name_of_before_keeps_its_directory(name: str) -> None:
    assert directory_of(name) == name == name_of_directory(name)


@given(st.one_of(near_names, st.text(alphabet="a+_B.", max_size=8)))
def test_a_directory_is_of_one_name_or_none(directory: str) -> None:
    name = name_of_directory(directory)
    assert name is None or directory_of(name) == directory


@pytest.mark.parametrize(
    "directory", ["Emails", "_broker", "_trash", "my.queue", "x.tmp", "+", "a+", "+1", "+-", "a+_b"]
)
def test_what_is_no_directory_of_a_name_is_passed_over(directory: str) -> None:
    assert name_of_directory(directory) is None
