"""Settings from a file, the environment and flags. The later wins.

The file (`penstock.toml`) has the tables [server], [broker] and [queues]; the environment names
the same as PENSTOCK_SERVER_PORT, PENSTOCK_BROKER_MAX_QUEUES, PENSTOCK_QUEUES_SYNC. What is not a
setting is refused, with the line where it stands.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from penstock.broker.settings import BrokerSettings
from penstock.checking import did_you_mean
from penstock.errors import InvalidInput, PenstockError
from penstock.server.settings import ServerSettings
from penstock.units import number_of

TABLES = ("server", "broker", "queues")
# Variables that other parts of the product read; a test compares.
OTHER_VARIABLES = frozenset({"PENSTOCK_CODEC", "PENSTOCK_HTTP", "PENSTOCK_KEY", "PENSTOCK_URL"})
# Kubernetes sets these in every pod beside a service whose name begins with penstock.
_OF_A_SERVICE = re.compile(
    r"PENSTOCK_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)=.*"
    r"|PENSTOCK_(\w+_)?PORT=(tcp|udp|sctp)://.*"
)
_TEXTS = frozenset(item.name for item in fields(ServerSettings) if item.type is str)
_LISTS = frozenset({"trusted_proxies", "cors_origins"})


class Configuration(NamedTuple):
    """All that can be set about `penstock serve`."""

    server: ServerSettings = ServerSettings()
    broker: BrokerSettings = BrokerSettings()


def load_configuration(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Configuration:
    """Read all settings. `flags` are settings of the server, by name; None is not given."""
    tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
    if file is not None:
        _merge(tables, _from_file(file))
    _merge(tables, _from_environment(environment or {}))
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    _refuse_unknown("server", given, lambda name: f"flag --{name.replace('_', '-')}")
    _merge(tables, {"server": given})
    asked = _Asked(file, environment or {}, given)
    with asked.named(("server",)):
        for name in _LISTS & tables["server"].keys():
            tables["server"][name] = _as_list(name, tables["server"][name])
        server = ServerSettings(**_numbers(tables["server"]))
    with asked.named(("broker", "queues")):
        broker = BrokerSettings(**_numbers(tables["broker"]), queues=_numbers(tables["queues"]))
    return Configuration(server, broker)


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with texts such as "10s" or "1MiB" converted to numbers."""
    return {name: number_of(name, value) for name, value in values.items()}


def _names_of(table: str) -> frozenset[str]:
    if table == "queues":
        return frozenset(BrokerSettings().queue_settings({}).as_dict())
    kind = ServerSettings if table == "server" else BrokerSettings
    return frozenset(item.name for item in fields(kind)) - {"queues"}


def _from_file(file: Path) -> dict[str, dict[str, Any]]:
    try:
        text = file.read_text("utf-8")
        found = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from None
    for table, values in found.items():
        if table not in TABLES or not isinstance(values, dict):
            line = _line_of(text, table)
            raise InvalidInput(
                f"{file}, line {line}: there is no table [{table}]; "
                f"the tables are {', '.join(f'[{name}]' for name in TABLES)}"
            )

        def source(name: str, table: str = table) -> str:
            return f"{file}, line {_line_of(text, table, name)}"

        _refuse_unknown(table, values, source)
    return found


def _from_environment(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    for variable, text in environment.items():
        if (
            not variable.startswith("PENSTOCK_")
            or variable in OTHER_VARIABLES
            or _OF_A_SERVICE.fullmatch(f"{variable}={text}")
        ):
            continue
        table, _, name = variable.removeprefix("PENSTOCK_").lower().partition("_")
        if table not in TABLES:
            raise InvalidInput(
                f"{variable}: there is no such variable; {_nearest_variable(variable)}"
            )
        found[table][name] = text if name in _TEXTS else _typed(text)
    for table, values in found.items():
        _refuse_unknown(table, values, lambda name, table=table: _variable(table, name))
    return found


def _variable(table: str, name: str) -> str:
    return f"PENSTOCK_{table.upper()}_{name.upper()}"


def _nearest_variable(variable: str) -> str:
    known = {_variable(table, name) for table in TABLES for name in _names_of(table)}
    close = get_close_matches(variable, known | OTHER_VARIABLES, 1)
    tables = ", ".join(_variable(table, "…") for table in TABLES)
    return f"did you mean {close[0]}?" if close else f"settings are {tables}"


def _refuse_unknown(table: str, values: Mapping[str, Any], source: Any) -> None:
    known = _names_of(table)
    for name in values:
        if name not in known:
            raise InvalidInput(
                f"{source(name)}: there is no setting {name!r} in [{table}]; "
                f"{did_you_mean(name, known)}"
            )


def _merge(tables: dict[str, dict[str, Any]], more: Mapping[str, Mapping[str, Any]]) -> None:
    for table, values in more.items():
        tables[table].update(values)


def _typed(text: str) -> Any:
    """Return the value of an environment variable, parsed as TOML; else the text itself."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str | list) else text


def _as_list(name: str, value: Any) -> tuple[str, ...]:
    """Return a list, which may be given as text with commas in a variable or a flag."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise InvalidInput(f"{name} is {value!r}; it must be a list of texts")
    return tuple(value)


def _line_of(text: str, table: str, name: str | None = None) -> int:
    """Return the line of a table, or of a setting in it. The TOML parser does not report it."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*[\"']?(\w+)", line)
        if header is not None:
            inside = header.group(1) == table
            if inside and name is None:
                return number
        elif name is None and re.match(rf"\s*[\"']?{re.escape(table)}\b", line):
            return number  # a setting outside of all tables
        elif inside and name and re.match(rf"\s*[\"']?{re.escape(name)}\b", line):
            return number
    return 1


class _Asked(NamedTuple):
    """The sources of settings, to name the one that has a wrong value."""

    file: Path | None
    environment: Mapping[str, str]
    flags: Mapping[str, Any]

    @contextmanager
    def named(self, tables: Sequence[str]) -> Iterator[None]:
        """Add the source of a setting to an error that starts with the setting's name."""
        try:
            yield
        except PenstockError as error:
            name = re.match(r"[a-z_]+", str(error))
            source = self._source_of(tables, name.group()) if name else ""
            raise InvalidInput(f"{source}{error}") from None

    def _source_of(self, tables: Sequence[str], name: str) -> str:
        """Return the source that took precedence: a flag, a variable, or a line of the file."""
        if "server" in tables and name in self.flags:
            return f"--{name.replace('_', '-')}: "
        for table in tables:
            variable = _variable(table, name)
            if variable in self.environment:
                return f"{variable}: "
        if self.file is not None:
            text = self.file.read_text("utf-8")
            for table in tables:
                line = _line_of(text, table, name)
                if line > 1:
                    return f"{self.file}, line {line}: "
        return ""
