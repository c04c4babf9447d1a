"""Settings from the file, the environment and flags."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidInput
from penstock.server.configuration import OTHER_VARIABLES, load_configuration
from penstock.server.settings import RELOADABLE, ServerSettings


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "penstock.toml"
    file.write_text(text)
    return file


def test_without_anything_the_defaults_are_used() -> None:
    configuration = load_configuration()
    assert configuration.server == ServerSettings()
    assert configuration.broker.queue_settings({}).storage.sync == "always"


def test_the_later_wins(tmp_path: Path) -> None:
    """File, environment, flag."""
    file = write(tmp_path, '[server]\nhost = "127.0.0.2"\nport = 1\nmax_headers = 7\n')
    environment = {"PENSTOCK_SERVER_PORT": "2", "PENSTOCK_SERVER_MAX_HEADERS": "8"}
    server = load_configuration(file, environment, {"port": 3, "data": None}).server
    assert (server.host, server.max_headers, server.port) == ("127.0.0.2", 8, 3)


def test_every_table_is_read(tmp_path: Path) -> None:
    file = write(
        tmp_path, "[broker]\ncreate_on_use = false\n[queues]\nlease_s = 5\nmax_attempts = 2\n"
    )
    environment = {"PENSTOCK_QUEUES_LEASE_S": "6", "PENSTOCK_BROKER_MAX_QUEUES": "10"}
    broker = load_configuration(file, environment).broker
    assert (broker.create_on_use, broker.max_queues) == (False, 10)
    queue = broker.queue_settings({})
    assert (queue.lease_s, queue.max_attempts) == (6, 2)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("# a file\n[server]\nport = 1\nprot = 2\n", 4, "prot"),
        ("[server]\nhost = 'x'\n[broker]\nhost = 'x'\n", 4, "host"),
        ("[server]\n\n[serverr]\nport = 1\n", 3, "serverr"),
        ("port = 1\n", 1, "port"),
        ("[queues]\nlease = 1\n", 2, "lease"),
        ("[server]\nheader_timeout_s = 1\nport = 70000\n", 3, "port"),
        ("[server]\nport = 1\nport = 2\n", 3, "overwrite"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    tmp_path: Path, text: str, line: int, word: str
) -> None:
    with pytest.raises(InvalidInput, match=f"line {line}(.|\n)*{word}|{word}(.|\n)*line {line}"):
        load_configuration(write(tmp_path, text))


@pytest.mark.parametrize("name", ["SERVER_PROT", "BROKER_X", "QUEUES_LEASE", "ADDRESS", "PORT"])
def test_an_unknown_variable_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"PENSTOCK_{name}"):
        load_configuration(None, {f"PENSTOCK_{name}": "1"})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("PENSTOCK_SERVR_PORT", "PENSTOCK_SERVER_PORT"),
        ("PENSTOCK_BROKR_CREATE_ON_USE", "PENSTOCK_BROKER_CREATE_ON_USE"),
        ("PENSTOCK_QUEUE_SYNC", "PENSTOCK_QUEUES_SYNC"),
        ("PENSTOCK_KEYS", "PENSTOCK_KEY"),
    ],
)
def test_a_variable_of_an_unknown_table_is_refused_with_a_hint(name: str, nearest: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{name}: .*{nearest}"):
        load_configuration(None, {name: "1"})


def test_other_variables_are_left_alone() -> None:
    load_configuration(None, {"PENSTOCK_CODEC": "python", "PENSTOCK_KEY": "x", "PATH": "/bin"})


def test_all_variables_of_the_product_are_known_to_the_server() -> None:
    source = Path(penstock.__file__).parent
    named = {
        name
        for file in source.rglob("*.py")
        for name in re.findall(r"\"(PENSTOCK_[A-Z_]*[A-Z])\"", file.read_text())
        if not name.startswith("PENSTOCK_BROKER_")  # a setting, which `penstock demo` sets
    }
    assert named == OTHER_VARIABLES


@pytest.mark.parametrize("service", ["PENSTOCK", "PENSTOCK_SERVER", "PENSTOCK_MAIN"])
def test_variables_of_a_kubernetes_service_are_left_alone(service: str) -> None:
    found = load_configuration(
        None,
        {
            f"{service}_SERVICE_HOST": "10.0.0.11",
            f"{service}_SERVICE_PORT": "8080",
            f"{service}_SERVICE_PORT_HTTP": "8080",
            f"{service}_PORT": "tcp://10.0.0.11:8080",
            f"{service}_PORT_8080_TCP": "tcp://10.0.0.11:8080",
            f"{service}_PORT_8080_TCP_ADDR": "10.0.0.11",
        },
    )
    assert found == load_configuration()


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--prot"):
        load_configuration(flags={"prot": 1})


@pytest.mark.parametrize("given", ["10.0.0.0/8, ::1", '["10.0.0.0/8", "::1"]'])
def test_lists_in_a_variable(given: str) -> None:
    environment = {"PENSTOCK_SERVER_TRUSTED_PROXIES": given}
    assert load_configuration(None, environment).server.trusted_proxies == ("10.0.0.0/8", "::1")


def test_text_in_a_variable_stays_text() -> None:
    environment = {"PENSTOCK_SERVER_DATA": "2024", "PENSTOCK_SERVER_HOST": "127.0.0.2"}
    server = load_configuration(None, environment).server
    assert (server.data, server.host) == ("2024", "127.0.0.2")


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="nowhere.toml"):
        load_configuration(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    "values",
    [
        {"port": -1},
        {"port": "8080"},
        {"port": True},
        {"header_timeout_s": 0},
        {"header_timeout_s": "10"},
        {"max_headers": 1.5},
        {"log_level": "loud"},
        {"log_format": "xml"},
        {"access_log": "yes"},
        {"host": 5},
        {"tls_cert": "cert.pem"},
        {"tls_key": "key.pem"},
        {"trusted_proxies": ("10.0.0.1/8",)},
        {"trusted_proxies": ("proxy.example.com",)},
        {"cors_origins": ("app.example.com",)},
        {"cors_origins": ("https://app.example.com/path",)},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(values)).split("_")[0]):
        ServerSettings(**values)


def test_what_can_be_reloaded_is_a_setting() -> None:
    assert {item.name for item in fields(ServerSettings)} >= RELOADABLE


# -- units -----------------------------------------------------------------------------------------


def test_durations_and_sizes_may_have_units_everywhere(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '[server]\nidle_timeout_s = "2m"\n[broker]\nidle_close_s = "1h"\n'
        '[queues]\nlease_s = "500ms"\nsegment_bytes = "1MiB"\n',
    )
    environment = {"PENSTOCK_SERVER_MAX_BODY_BYTES": "64MB", "PENSTOCK_QUEUES_BLOCK_S": "1m"}
    configuration = load_configuration(file, environment)
    assert configuration.server.idle_timeout_s == 120
    assert configuration.server.max_body_bytes == 64_000_000
    assert configuration.broker.idle_close_s == 3600
    queue = configuration.broker.queue_settings({})
    assert (queue.lease_s, queue.storage.segment_bytes, queue.block_s) == (0.5, 1 << 20, 60)


@pytest.mark.parametrize("text", ["1x", "m", "-1s", "1 m", "1m30s", "1MB", ""])
def test_what_is_no_duration_is_refused_with_what_one_is(text: str) -> None:
    with pytest.raises(InvalidInput, match="PENSTOCK_QUEUES_LEASE_S: lease_s is .*250ms"):
        load_configuration(None, {"PENSTOCK_QUEUES_LEASE_S": text})


# -- where a wrong value stands --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SERVER_PORT", "70000"),
        ("SERVER_LOG_LEVEL", "loud"),
        ("SERVER_TRUSTED_PROXIES", "nowhere"),
        ("BROKER_MAX_QUEUES", "-1"),
        ("BROKER_CREATE_ON_USE", "perhaps"),
        ("QUEUES_MAX_ATTEMPTS", "0"),
        ("QUEUES_SYNC", "sometimes"),
        ("QUEUES_SEGMENT_BYTES", "1"),
    ],
)
def test_a_wrong_value_in_the_environment_is_told_with_its_variable(
    tmp_path: Path, variable: str, text: str
) -> None:
    table, _, name = variable.partition("_")
    file = write(tmp_path, f"# a file\n[{table.lower()}]\n")
    with pytest.raises(InvalidInput, match=f"^PENSTOCK_{variable}: {name.lower()}"):
        load_configuration(file, {f"PENSTOCK_{variable}": text})


def test_the_place_that_won_is_the_one_that_is_told(tmp_path: Path) -> None:
    file = write(tmp_path, "[server]\nport = 70000\n")
    with pytest.raises(InvalidInput, match="line 2: port is 70000"):
        load_configuration(file, {})
    environment = {"PENSTOCK_SERVER_PORT": "70001"}
    with pytest.raises(InvalidInput, match="^PENSTOCK_SERVER_PORT: port is 70001"):
        load_configuration(file, environment)
    with pytest.raises(InvalidInput, match="^--port: port is 70002"):
        load_configuration(file, environment, {"port": 70002})


def test_a_misspelt_setting_is_answered_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[queues]\nmax_atempts = 3\n")
    with pytest.raises(InvalidInput, match=r"line 2: .*did you mean max_attempts\?"):
        load_configuration(file)
    with pytest.raises(InvalidInput, match=r"PENSTOCK_SERVER_PROT: .*did you mean port\?"):
        load_configuration(None, {"PENSTOCK_SERVER_PROT": "1"})
