"""Imports of packages that only an extra installs."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError


@contextmanager
def requires_extra(
    extra: str,
    what: str = "this",
    error: type[PenstockError] | type[ModuleNotFoundError] = PenstockError,
) -> Iterator[None]:
    """Wrap an import: report a missing package with the extra that installs it.

    `what` needs the package. A missing module of Penstock itself is not reported so.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("penstock"):
            raise
        made = error(
            f"{what} needs the package {missing.name!r}, which is not installed; "
            f"install Penstock with the extra {extra} (pip install '.[{extra}]' in its checkout)"
        )
        if isinstance(made, ModuleNotFoundError):
            made.name = missing.name
        raise made from None
