"""The two bodies of the clock and the gate."""

from types import ModuleType
from typing import Any

import pytest

from penstock.clock import clock_py

compiled: ModuleType | None
try:
    from penstock.clock import _clock as compiled
except ImportError:
    compiled = None

needs_compiled = pytest.mark.skipif(
    compiled is None, reason="the compiled clock was not built: install a C compiler"
)

each_body = pytest.mark.parametrize(
    "body",
    [
        pytest.param(clock_py, id="python"),
        pytest.param(compiled, id="compiled", marks=needs_compiled),
    ],
)

Body = Any  # one of the two modules
