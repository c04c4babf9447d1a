"""What some commands need beyond the extra `cli`, and what is said where it is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Around an import: a package that is missing is named, with the extra that has it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("penstock"):
            raise
        raise PenstockError(
            f"this needs the package {error.name!r}, which is not installed; "
            f"run: pip install 'penstock[{extra}]'"
        ) from None
