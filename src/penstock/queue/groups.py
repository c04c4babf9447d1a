"""The consumer groups of a queue, as users see them."""

from collections.abc import Callable, Iterator

from penstock.checking import Time
from penstock.queue.core import QueueCore
from penstock.queue.operating import Operating


class Groups:
    """Independent readers of one queue, each with its own position, leases and dead letters.

    Iterating gives their names; `"audit" in queue.groups` asks for one.
    """

    def __init__(self, operating: Operating, core: QueueCore, commit: Callable[[], None]) -> None:
        self._operating = operating
        self._core = core
        self._commit = commit

    def create(
        self,
        name: str,
        *,
        to: str | None = None,
        seq: int | None = None,
        id: str | None = None,
        time: Time | None = None,
    ) -> None:
        """Make a group that starts at the beginning (the default), the end, a seq, id or time.

        Nothing happens if there is one of that name.
        """
        self._operating.create_group(name, to=to, seq=seq, id=id, time=time)
        self._commit()

    def delete(self, name: str) -> None:
        """Forget a group and everything about it; `main` always stays."""
        self._operating.delete_group(name)
        self._commit()

    def __iter__(self) -> Iterator[str]:
        with self._core.lock, self._core.change:
            return iter([group.name for group in self._core.state.groups.values()])

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __len__(self) -> int:
        return len(self._core.state.groups)
