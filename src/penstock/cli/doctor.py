"""`penstock doctor`: find what would make a queue or broker slow, unsafe or unable to start."""

import json as json_module
import os
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.formatting import number, printable
from penstock.cli.machine_checks import (
    Finding,
    check_clock,
    check_codec,
    check_java,
    check_newest_entry,
    check_open_files,
    check_port,
    check_python,
    files_below,
    machine_findings,
)
from penstock.cli.options import AsJson, argument, option
from penstock.cli.terminal import out, print_json, print_text
from penstock.clock import SystemClock
from penstock.extras import requires_extra
from penstock.ledger.damage import QUARANTINE
from penstock.ledger.files import OsFiles
from penstock.ledger.folder import Folder
from penstock.ledger.queue_directory import announced_url, is_made

_OLDEST_POSTGRES = 14
_SKEW_S = 2.0
_PATIENCE_S = 5
_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    place: Annotated[
        str,
        argument("PLACE", "Queue, data directory, broker's URL or postgresql://…. Default: here."),
    ] = ".",
    port: Annotated[int, option("Port that a broker is to listen on.", min=1, max=65535)] = 8080,
    json: AsJson = False,
) -> None:
    """Check the machine and a place: disk, fsync, clock, limits, programs.

    Each check is ok, warn or fail, with what to do. Exits with 1 if one fails.
    """
    findings = list(_findings(place, port))
    failed = sum(one.state == "fail" for one in findings)
    warned = sum(one.state == "warn" for one in findings)
    if json:
        print_json({"place": place, "checks": [one._asdict() for one in findings]})
    else:
        made = Table.grid(padding=(0, 2))
        made.add_column(no_wrap=True)
        made.add_column(no_wrap=True)
        made.add_column(overflow="fold")
        for one in findings:
            made.add_row(Text(one.state, _COLORS[one.state]), one.check, printable(one.text))
            if one.advice:
                made.add_row("", "", Text(printable(one.advice), "dim"))
        out.print(made)
        out.line()
        good = len(findings) - failed - warned
        print_text(f"{number(good)} ok, {number(warned)} warn, {number(failed)} fail.")
    if failed:
        raise typer.Exit(1)


def _findings(place: str, port: int) -> Iterator[Finding]:
    scheme, separator, _ = place.partition("://")
    if not separator:
        yield from _directory(Path(place), port)
        return
    if scheme in ("postgresql", "postgres"):
        yield from _database(place)
    else:
        yield from _broker(place)
    yield check_clock(SystemClock())
    yield from (check_open_files(), check_python(), check_codec(), check_java())


# -- a directory -----------------------------------------------------------------------------------


def _directory(place: Path, port: int) -> Iterator[Finding]:
    holder = None
    existing = place
    if not place.exists():
        while not existing.exists():
            existing = existing.absolute().parent
        yield Finding("place", "ok", f"{place} does not exist yet; {existing} is checked")
    elif not place.is_dir():
        yield Finding("place", "fail", f"{place} is not a directory", "name a directory")
        return
    else:
        folder = Folder(OsFiles(), str(place))
        holder = announced_url(folder)
        yield _what_is(place, folder)
        newest = check_newest_entry(place, SystemClock())
        if newest is not None:
            yield newest
    if not os.access(existing, os.W_OK | os.X_OK):
        advice = f"run as its owner, or: chown {os.getuid()} {existing}"
        if os.getuid() == 0:  # so it is not a matter of rights
            advice = "it is mounted read-only, or is no directory for files: name another one"
        text = f"user {os.getuid()} cannot write in {existing}"
        yield Finding("permissions", "fail", text, advice)
        return
    yield from machine_findings(existing)
    yield check_port("127.0.0.1", port, holder)


def _what_is(place: Path, folder: Folder) -> Finding:
    if is_made(folder):
        kind = "a queue"
    elif (place / "_broker").exists():
        kind = "the data directory of a broker"
    else:
        return Finding("place", "ok", f"{place} is neither a queue nor a broker's data directory")
    try:
        writer = json_module.loads((place / "LOCK").read_text())
        kind += f"; last writer: process {writer['pid']} on {writer['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        pass
    damaged = sum(file.parent.name == QUARANTINE for file in files_below(place))
    if damaged:
        return Finding(
            "place",
            "warn",
            f"{kind}; {number(damaged, 'file')} in quarantine",
            "run `penstock verify` on each queue, and see docs/durability.md",
        )
    return Finding("place", "ok", kind)


# -- a broker --------------------------------------------------------------------------------------


def _broker(url: str) -> Iterator[Finding]:
    clock = SystemClock()
    root = "/".join(url.split("/")[:3])
    began_ns = clock.monotonic_ns()
    try:
        with urlopen(Request(f"{root}/readyz"), timeout=_PATIENCE_S) as answer:
            date = answer.headers["date"]
    except HTTPError as error:
        said = error.read(1000).decode(errors="replace").strip()
        yield Finding("broker", "fail", f"{root} answers {error.code}: {said}", "see its log")
        return
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        yield Finding("broker", "fail", f"{root}: {reason}", "is it running, is the URL right?")
        return
    took_s = (clock.monotonic_ns() - began_ns) / 1e9
    yield Finding("broker", "ok", f"{root} is ready, in {took_s * 1e3:.1f} ms")
    if date:
        skew_s = parsedate_to_datetime(date).timestamp() - clock.now_ns() / 1e9
        yield _skew("the broker", skew_s)


def _skew(whose: str, skew_s: float) -> Finding:
    if abs(skew_s) <= _SKEW_S:
        return Finding("clock skew", "ok", f"{whose}: within {_SKEW_S:.0f} s of this machine")
    return Finding(
        "clock skew",
        "warn",
        f"the clock of {whose} differs by {skew_s:+.1f} s",
        "run NTP on both machines",
    )


# -- a database ------------------------------------------------------------------------------------

_FACTS = """
select current_setting('server_version_num')::int, pg_is_in_recovery(),
    has_database_privilege(current_database(), 'CREATE'),
    exists (select from pg_tables where schemaname = 'penstock' and tablename = 'migration'),
    current_setting('synchronous_commit'), current_setting('fsync'),
    current_setting('max_connections')::int - (select count(*) from pg_stat_activity),
    extract(epoch from clock_timestamp())::float8
"""


def _database(url: str) -> Iterator[Finding]:
    with requires_extra("postgres"):
        import psycopg
    try:
        with psycopg.connect(url, connect_timeout=_PATIENCE_S) as connection:
            row = connection.execute(_FACTS).fetchone()
    except psycopg.Error as error:
        text = " ".join(str(error).split())
        yield Finding("PostgreSQL", "fail", text, "is it running, are address and password right?")
        return
    assert row is not None  # of a query without a table
    version, standby, may_create, migrated, commit, fsync, left, now_s = row
    major = version // 10_000
    if major < _OLDEST_POSTGRES:
        advice = f"use PostgreSQL {_OLDEST_POSTGRES} or newer"
        yield Finding("PostgreSQL", "fail", f"version {major}", advice)
    elif standby:
        advice = "name all servers in the URL: libpq finds the one that takes writes"
        yield Finding("PostgreSQL", "fail", f"version {major}, a standby", advice)
    else:
        yield Finding("PostgreSQL", "ok", f"version {major}, takes writes")
    if migrated or may_create:
        done = "the tables are there" if migrated else "the user may create the tables"
        yield Finding("rights", "ok", done)
    else:
        yield Finding(
            "rights",
            "fail",
            "no tables, and no right to create them",
            "grant create on database … to the user, or run `penstock migrate` as another",
        )
    if fsync != "on" or commit == "off":
        text = f"fsync is {fsync}, synchronous_commit is {commit}"
        yield Finding("durability", "fail", text, "turn both on: answers would not be durable")
    else:
        yield Finding("durability", "ok", f"fsync is on, synchronous_commit is {commit}")
    if left < 20:
        advice = "raise max_connections, or lower the connections of the brokers"
        yield Finding("connections", "warn", f"{left} are left", advice)
    else:
        yield Finding("connections", "ok", f"{left} are left")
    yield _skew("the database", now_s - SystemClock().now_ns() / 1e9)
