"""Stores for the tests of the ledger, in every mode and over both codecs."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from penstock import codec
from penstock.codec import codec_py
from tests.ledger.store import MODES, Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A directory for one ledger, that does not exist yet."""
    store = Store(tmp_path / "queue")
    yield store
    store.close()


@pytest.fixture(params=MODES)
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """The same in every way of writing."""
    store = Store(tmp_path / "queue", MODES[request.param])
    yield store
    store.close()


@pytest.fixture(params=["compiled", "python"])
def either_codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The ledger over one codec, then over the other."""
    body = codec_py
    if request.param == "compiled":
        body = pytest.importorskip(
            "penstock.codec._codec", reason="the compiled codec was not built"
        )
    for name in codec_py.__all__:
        used, wanted = getattr(codec, name, None), getattr(body, name, None)
        modules = [module for key, module in sys.modules.items() if key.startswith("penstock.")]
        for module in modules:
            outside_of_codec = not module.__name__.startswith("penstock.codec.")
            if outside_of_codec and used is not None and getattr(module, name, None) is used:
                monkeypatch.setattr(module, name, wanted)
    assert import_module("penstock.ledger.tail").Packer is body.Packer
    return str(request.param)
