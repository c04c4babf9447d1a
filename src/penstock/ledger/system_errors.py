"""Errors of the operating system, said as ours: what happened, and what to do."""

import errno

from penstock.errors import DiskFull, LedgerError, LedgerStopped

FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)


def as_ledger_error(path: str, doing: str, error: OSError) -> LedgerError:
    """One that ends a call, and nothing else."""
    kind = DiskFull if error.errno in FULL_ERRORS else LedgerError
    return kind(f"{path}: {doing} failed: {error}")


def as_passing_error(path: str, error: OSError) -> LedgerError | None:
    """One in making room that may be over at the next try; None where it is not of that kind."""
    if error.errno in FULL_ERRORS:
        return DiskFull(f"{path}: no room to grow ({error}); nothing was written")
    if error.errno in _OUT_OF_FILES:
        return LedgerError(
            f"{path}: too many open files ({error}); nothing was written. Raise the limit "
            f"(ulimit -n) or close something."
        )
    return None


def as_final_error(path: str, doing: str, error: OSError) -> LedgerStopped:
    """One after which nothing that was being written can be trusted."""
    return LedgerStopped(
        f"{path}: {doing} failed ({error}). What was not answered may be lost, and a second try "
        f"could not be trusted: close and reopen, recovery then shows what is on disk."
    )
