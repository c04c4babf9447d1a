"""The broker on files: Dockerfile, compose file and systemd units. No container is run.

What they would run is run here: with their environment and commands, in directories of the test.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

import penstock
from penstock.server.configuration import load_configuration
from tests.harness.postgres_server import free_port

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("*.Dockerfile"))
COMPOSE: Any = yaml.safe_load((DEPLOY / "compose-files.yaml").read_text())
UNITS = sorted(DEPLOY.glob("*.service"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, with continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [
        (word, rest) for word, _, rest in (line.partition(" ") for line in text.split("\n")) if word
    ]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles_follow_the_rules(path: Path) -> None:
    found = instructions(path)
    known = {"FROM", "RUN", "COPY", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    assert {word for word, _ in found} <= known | {"ENTRYPOINT", "CMD"}
    for word, rest in found:
        if word == "FROM":
            tag = rest.split()[0].partition(":")[2]
            assert tag not in ("", "latest"), f"no version: {rest}"
        if word == "RUN" and "apt-get install" in rest:
            assert "apt-get update" in rest
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists" in rest
        if word in ("ENTRYPOINT", "CMD"):
            assert rest.startswith("["), "the exec form passes signals on"
        if word == "RUN" and "pip install" in rest:
            assert "--no-cache-dir" in rest


def test_the_image_of_the_broker_is_built_in_stages_and_does_not_run_as_root() -> None:
    found = instructions(DEPLOY / "broker.Dockerfile")
    words = [word for word, _ in found]
    assert words.count("FROM") == 2
    final = found[len(words) - 1 - words[::-1].index("FROM") :]
    assert dict(final)["USER"] == "penstock"
    assert "HEALTHCHECK" in dict(final)
    assert not any(word == "RUN" and "apt-get" in rest for word, rest in final)


def image_environment() -> dict[str, str]:
    (rest,) = [rest for word, rest in instructions(DEPLOY / "broker.Dockerfile") if word == "ENV"]
    return dict(pair.split("=", 1) for pair in shlex.split(rest))


def test_the_settings_of_the_image_are_valid() -> None:
    found = load_configuration(None, image_environment())
    assert (found.server.data, found.server.host, found.server.port) == ("/data", "0.0.0.0", 8080)


def test_every_file_and_volume_of_the_compose_file_exists() -> None:
    for service in COMPOSE["services"].values():
        build = service["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
        assert {volume.split(":")[0] for volume in service["volumes"]} <= set(COMPOSE["volumes"])
        assert set(service.get("depends_on", [])) <= set(COMPOSE["services"])
    text = (DEPLOY / "compose-files.yaml").read_text()
    assert set(re.findall(r"\$\{(\w+)", text)) == {"CLIENT_KEY"}
    assert "CLIENT_KEY=" in (DEPLOY / "env.example").read_text()


def test_what_the_containers_run_works_outside_of_them(tmp_path: Path) -> None:
    data, port, key = tmp_path / "data", free_port(), "pk_" + "a" * 43
    scripts = Path(sys.executable).parent
    given = {**os.environ, **image_environment(), "PATH": f"{scripts}:{os.environ['PATH']}"}
    given |= {"PENSTOCK_SERVER_DATA": str(data), "PENSTOCK_SERVER_PORT": str(port)}
    given |= {"PENSTOCK_KEY": key}

    def shell(text: str, **more: str) -> None:
        text = text.replace("$$", "$").replace("/data", str(data)).replace("/cache", str(tmp_path))
        subprocess.run(["sh", "-c", text], env=given | more, check=True, timeout=60)

    services = COMPOSE["services"]
    for _ in range(2):  # the second time it finds the key
        shell(services["key"]["command"][0], CLIENT_KEY=key)
    found = dict(instructions(DEPLOY / "broker.Dockerfile"))
    command = [*yaml.safe_load(found["ENTRYPOINT"]), *yaml.safe_load(found["CMD"]), "--json"]
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stdout is not None
            broker.stdout.readline()
            check = yaml.safe_load(found["HEALTHCHECK"].partition("CMD ")[2])
            check = [word.replace("8080", str(port)) for word in check]
            subprocess.run(check, env=given, check=True, timeout=30)
            with penstock.open(f"http://127.0.0.1:{port}/shop/orders", key=key) as queue:
                queue.enqueue(b"x")
            (backing_up,) = services["backup"]["command"]
            once = re.fullmatch(r"while (.*); do sleep 3600; done", backing_up)
            assert once is not None
            shell(once[1])
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
        finally:
            broker.terminate()
    assert broker.returncode == 0
    assert (tmp_path / "backups" / "backup.json").exists()


# -- systemd ---------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd tools here")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_unit_and_finds_it_hardened(path: Path, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "penstock"
    unit = tmp_path / path.name
    unit.write_text(path.read_text().replace("/opt/penstock/bin/penstock", str(program)))
    for timer in DEPLOY.glob("*.timer"):
        shutil.copy(timer, tmp_path)
    checked = [unit, *tmp_path.glob(f"{path.stem}.timer")]
    ran = subprocess.run(
        ["systemd-analyze", "verify", *checked], capture_output=True, text=True, check=False
    )
    ours = [line for line in ran.stderr.splitlines() if "penstock" in line]
    assert (ran.returncode, ours) == (0, [])
    subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=40", unit],
        check=True,
        capture_output=True,
    )


def test_the_commands_of_the_units_exist() -> None:
    for path in UNITS:
        for line in re.findall(r"^ExecStart=(.*)$", path.read_text(), re.MULTILINE):
            _, command, *_ = shlex.split(line)
            assert command in ("serve", "backup")
