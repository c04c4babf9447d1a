"""The two bodies of the codec, and how to compare them."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from penstock.codec import codec_py
from penstock.errors import BadEntry

compiled: ModuleType | None
try:
    from penstock.codec import _codec as compiled
except ImportError:
    compiled = None

needs_compiled = pytest.mark.skipif(
    compiled is None, reason="the compiled codec was not built: install a C compiler"
)

each_body = pytest.mark.parametrize(
    "body",
    [
        pytest.param(codec_py, id="python"),
        pytest.param(compiled, id="compiled", marks=needs_compiled),
    ],
)

Body = Any  # one of the two modules
Outcome = tuple[str, Any, Any]


def outcome(function: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
    """What a call came to, in a form that can be compared: its value, or how it failed."""
    try:
        return "value", function(*args, **options), None
    except BadEntry as error:
        return type(error).__name__, error.offset, error.reason
    except Exception as error:
        return type(error).__name__, None, str(error)


def assert_same(name: str, *args: Any, **options: Any) -> Outcome:
    """Call one function of both bodies; the answer that they agree on."""
    expected = outcome(getattr(codec_py, name), *args, **options)
    found = outcome(getattr(compiled, name), *args, **options)
    assert found == expected, f"{name}: {found} is not {expected}"
    return expected
