"""The consumer groups of a broker's queue, for threads and for tasks."""

from collections.abc import Iterator

from penstock.checking import Time
from penstock.client import operating
from penstock.client.async_connection import AsyncConnection
from penstock.client.connection import Connection


class RemoteGroups:
    """Independent readers of one queue. Iterating gives their names."""

    def __init__(self, path: str, connection: Connection) -> None:
        self._path = path
        self._do = connection.do

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
        place = operating.place_of(to, seq, id, time, default="beginning")
        self._do(operating.create_group(self._path, name, place))

    def delete(self, name: str) -> None:
        """Forget a group and everything about it; `main` always stays."""
        self._do(operating.delete_group(self._path, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> list[str]:
        return self._do(operating.groups(self._path))


class AsyncRemoteGroups:
    """The same, awaitable."""

    def __init__(self, path: str, connection: AsyncConnection) -> None:
        self._path = path
        self._do = connection.do

    async def create(
        self,
        name: str,
        *,
        to: str | None = None,
        seq: int | None = None,
        id: str | None = None,
        time: Time | None = None,
    ) -> None:
        """Make a group that starts at the beginning (the default), the end, a seq, id or time."""
        place = operating.place_of(to, seq, id, time, default="beginning")
        await self._do(operating.create_group(self._path, name, place))

    async def delete(self, name: str) -> None:
        """Forget a group and everything about it; `main` always stays."""
        await self._do(operating.delete_group(self._path, name))

    async def names(self) -> list[str]:
        """All of them."""
        return await self._do(operating.groups(self._path))
