"""Tasks in a directory when the process has too many open files."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import LedgerError
from penstock.server import listening
from penstock.shared import member
from penstock.tasks import Tasks


def _no_more(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(
    ("owner", "name"),
    [(os, "pipe"), (member, "Holder"), (listening.UnixSocket, "_bind")],
    ids=["pipe", "holder", "socket"],
)
def test_a_queue_too_many_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    with Tasks(tmp_path) as tasks:
        task = tasks.add(lambda: None, name="t")
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, _no_more)
            with pytest.raises(LedgerError, match="too many open files") as refused:
                task.enqueue()
        said = str(refused.value)
        assert "ulimit -n" in said and "fewer queues" in said and "broker" in said
        assert task.enqueue().state() == "ready"  # when there are some again
