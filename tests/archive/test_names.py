"""Queues whose names differ in the case of letters share no file, whatever the file system."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.archive.names import file_name, folder_of

NAMES = st.text("abAB_-.1", min_size=1, max_size=6) | st.text("sSſkKßöÖ", min_size=1, max_size=3)


def place(namespace: str | None, name: str, seq: int = 1) -> str:
    key = name if namespace is None else f"{namespace}/{name}"
    return f"{folder_of(namespace, name, '2026-01-31')}/{file_name(key, seq)}"


@given(st.none() | NAMES, NAMES, st.data())
def test_no_two_queues_have_one_file_where_case_is_ignored(
    namespace: str | None, name: str, data: st.DataObject
) -> None:
    def other_case(text: str) -> str:
        return "".join(data.draw(st.sampled_from([c, c.lower(), c.upper()])) for c in text)

    other = (namespace and other_case(namespace), other_case(name))
    if other != (namespace, name):
        assert place(namespace, name).casefold() != place(*other).casefold()


def test_plain_names_keep_the_files_they_have_always_had() -> None:
    assert place("shop", "orders-2.eu", 7) == (
        "namespace=shop/queue=orders-2.eu/date=2026-01-31/00000000000000000007.parquet"
    )


def test_the_partition_still_says_the_name() -> None:
    assert "/queue=Emails/" in place("shop", "Emails")
