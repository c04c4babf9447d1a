"""The files in deploy/ agree with each other and with the settings. No container is run."""

import re
from pathlib import Path
from typing import Any

import yaml

from penstock.server.configuration import load_configuration

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def content(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


COMPOSE, PATRONI = content("compose.yaml"), content("patroni.yml")
SERVICES: dict[str, Any] = COMPOSE["services"]


def test_every_file_of_the_services_exists() -> None:
    for service in SERVICES.values():
        if "build" in service:
            build = service["build"]
            assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).is_file()
            elif not source.startswith("/"):
                assert source in COMPOSE["volumes"]
    for dockerfile in DEPLOY.glob("*.Dockerfile"):
        for words in re.findall(r"^COPY (?!--from)(.*)$", dockerfile.read_text(), re.MULTILINE):
            source = next(word for word in words.split() if not word.startswith("--"))
            assert source == "." or (DEPLOY / source).is_file()


def test_every_service_that_is_waited_for_exists() -> None:
    for service in SERVICES.values():
        assert set(service.get("depends_on", [])) <= set(SERVICES)


def test_every_secret_is_required_and_in_the_example() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    used = set(re.findall(r"\$\{(\w+)", text))
    assert used == set(re.findall(r"\$\{(\w+):\?", text)), "none has a default"
    example = re.findall(r"^(\w+)=(.*)$", (DEPLOY / "env.example").read_text(), re.MULTILINE)
    assert dict(example) == dict.fromkeys(used, "")


def test_brokers_have_valid_settings_and_know_every_database() -> None:
    for name in ("broker1", "broker2"):
        environment = SERVICES[name]["environment"]
        given = {key: value for key, value in environment.items() if key.startswith("PENSTOCK_")}
        found = load_configuration(None, given)
        databases = [name for name in SERVICES if name.startswith("db")]
        assert found.server.data == f"postgresql://penstock@{','.join(databases)}/penstock"
        assert found.server.data == SERVICES["key"]["environment"]["STORE"]
        balancer = (DEPLOY / "haproxy.cfg").read_text()
        assert f"server {name} {name}:{found.server.port}" in balancer


def test_only_a_synchronous_standby_is_promoted() -> None:
    settings = PATRONI["bootstrap"]["dcs"]
    assert settings["synchronous_mode"] is True
    assert settings["synchronous_mode_strict"] is True
    assert settings["postgresql"]["parameters"]["synchronous_commit"] == "on"
    assert settings["loop_wait"] + 2 * settings["retry_timeout"] <= settings["ttl"]


def test_patroni_finds_etcd_and_each_database_has_its_own_address() -> None:
    assert [host.partition(":")[0] for host in PATRONI["etcd3"]["hosts"]] == [
        name for name in SERVICES if name.startswith("etcd")
    ]
    for name in ("db1", "db2", "db3"):
        environment = SERVICES[name]["environment"]
        assert environment["PATRONI_NAME"] == name
        assert environment["PATRONI_POSTGRESQL_CONNECT_ADDRESS"] == f"{name}:5432"
        assert environment["PATRONI_RESTAPI_CONNECT_ADDRESS"] == f"{name}:8008"
