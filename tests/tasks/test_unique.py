"""Unique jobs: while one waits, or until it is done, another call stands for none."""

from pathlib import Path

import pytest

from penstock.errors import InvalidInput
from penstock.tasks import Tasks
from penstock.tasks.arguments import Arguments


@pytest.mark.parametrize("kind", ["memory", "directory", "shared", "broker", "broker over gRPC"])
def test_modes_at_every_place(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    where: str | Path = "memory:" if kind == "memory" else tmp_path
    if kind.startswith("broker"):
        server = request.getfixturevalue("server")
        url = server.url if kind == "broker" else server.server.urls[-1]
        where = f"{url}/unique-{kind.replace(' ', '-').lower()}"
    with Tasks(where, shared=kind == "shared") as tasks:
        inner: list[bool] = []

        @tasks.task(unique="until_done")
        def import_file(name: str) -> None:
            inner.append(import_file.enqueue(name).is_duplicate)

        @tasks.task
        def refresh(user: int) -> None:
            inner.append(waiting.enqueue(user).is_duplicate)

        waiting = refresh.with_options(unique="waiting", unique_key="all users", delay=0)
        first, again, other = (import_file.enqueue(name) for name in ("a", "a", "b"))
        assert (first.is_duplicate, again.is_duplicate, other.is_duplicate) == (False, True, False)
        assert again.id == first.id != other.id
        assert tasks.run_pending() == 2
        assert inner == [True, True]  # while it runs
        assert not import_file.enqueue("a").is_duplicate
        tasks.run_pending()
        inner.clear()
        assert [waiting.enqueue(user).is_duplicate for user in (1, 2)] == [False, True]
        tasks.run_pending(limit=2)
        assert inner == [False, False]  # the one that runs does not wait


def test_bad_options_are_refused(tasks: Tasks) -> None:
    with pytest.raises(InvalidInput, match="unique is 'always'"):
        tasks.add(lambda: None, name="a", unique="always")
    with pytest.raises(InvalidInput, match="not both"):
        tasks.add(lambda: None, name="b", unique="waiting", unique_for_s=5)
    task = tasks.add(lambda: None, name="c", unique_for_s=5)
    assert task.with_options(unique="waiting").enqueue().is_duplicate is False
    with pytest.raises(TypeError, match="unique_key needs"):
        tasks.add(lambda: None, name="d").with_options(unique_key="x")


def test_equal_arguments_are_the_same_however_they_are_written(tasks: Tasks) -> None:
    @tasks.task(unique_for_s=100)
    def find(
        words: set[str], limits: dict[str, int], scale: float = 1, *, mark: str = ""
    ) -> None: ...

    first = find.enqueue({"ann", "bob", "carl"}, {"a": 1, "b": 2})
    same = [
        find.enqueue({"carl", "bob", "ann"}, {"b": 2, "a": 1}),
        find.enqueue(limits={"a": 1, "b": 2}, words={"ann", "bob", "carl"}, scale=1.0),
        find.enqueue({"ann", "bob", "carl"}, {"a": 1, "b": 2}, 1),
    ]
    assert [job.id for job in same] == [first.id] * 3
    assert not find.enqueue({"ann", "bob"}, {"a": 1, "b": 2}).is_duplicate
    assert not find.enqueue({"ann", "bob", "carl"}, {"a": 1, "b": 2}, 2).is_duplicate


def test_the_digest_of_a_set_does_not_depend_on_the_order_of_its_items() -> None:
    def find(words: set[str]) -> None: ...

    arguments = Arguments("find", find)
    assert arguments.normalised(b'{"words":["b","a","c"]}') == b'{"words":["a","b","c"]}'

    def several(items: set[int | str]) -> None: ...

    mixed = Arguments("several", several)
    assert mixed.normalised(b'{"items":[1,"a"]}') != mixed.normalised(b'{"items":[1,"b"]}')
