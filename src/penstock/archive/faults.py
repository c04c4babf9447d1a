"""Errors of archives."""

from penstock.errors import LedgerError


class ArchiveError(LedgerError):
    """An archive is in use, damaged, cannot be reached, or is of another queue."""


class ArchiveConflict(ArchiveError):
    """Another job wrote the manifest of the same queue first. What it wrote is kept."""
