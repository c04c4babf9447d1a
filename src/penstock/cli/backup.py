"""Commands that save and restore whole queues: backup, restore."""

import resource
from typing import Annotated

import typer

from penstock.backup import BackupTarget, back_up
from penstock.backup import restore as restore_backup
from penstock.cli.formatting import local_time, number, printable, size
from penstock.cli.options import AsJson, argument, option
from penstock.cli.terminal import (
    exit_no,
    print_json,
    print_list,
    print_stderr,
    print_text,
    progress_bar,
    table,
)
from penstock.errors import InvalidInput
from penstock.ledger import Damage
from penstock.model import NS

_FEW_FILES = 65_536


def backup(
    source: Annotated[
        str, argument("SOURCE", "Directory of a queue, or data directory of a broker.")
    ],
    target: Annotated[str, argument("BACKUPS", "Directory of the backups; created if missing.")],
    keep: Annotated[int, option("Number of backups to keep, with this one.", min=1)] = 10,
    verify: Annotated[
        bool,
        option("First read all earlier files in BACKUPS, and repair damaged ones if possible."),
    ] = False,
    json: AsJson = False,
) -> None:
    """Save a queue, or all queues of a broker. They may be in use.

    Only what is new since the last backup is copied. An interrupted backup
    leaves the earlier ones as they were. Exits with 1 if the backup was made,
    and --verify found damage in BACKUPS, repaired or not; with 2 if it was not
    made.
    """
    _refuse_url(source, "SOURCE")
    _refuse_url(target, "BACKUPS")
    _allow_many_files()
    with progress_bar(in_bytes=True) as progress:
        task = progress.add_task("saving", total=None)
        made = back_up(
            source,
            target,
            keep=keep,
            verify=verify,
            on_file=lambda path, written: progress.update(task, advance=written),
        )
    removed_backups = tuple(f"(backup {name})" for name in made.removed)
    for file in made.damaged:
        if file not in made.lost:
            is_removed = file.endswith(removed_backups)
            now = "its backup was removed, being old" if is_removed else "it is repaired"
            print_stderr(printable(f"{target}: was damaged; {now}: {file}"))
    for file in made.lost:
        print_stderr(
            printable(
                f"{target}: is damaged, and {source} no longer has it, so this backup cannot be "
                f"restored: {file}"
            )
        )
    if json:
        print_json(made._asdict())
    else:
        removed = f"; removed {number(len(made.removed), 'old backup')}" if made.removed else ""
        print_text(
            f"{printable(target)}: backup {made.name} has {number(made.queues, 'queue')} in "
            f"{number(made.files, 'file')} ({size(made.size_bytes)}); copied "
            f"{size(made.copied_bytes)}{removed}."
        )
    if made.damaged:
        raise typer.Exit(1)


def restore(
    source: Annotated[str, argument("BACKUPS", "Directory of the backups.")],
    target: Annotated[
        str | None, argument("TARGET", "New directory for the queue or the broker's data.")
    ] = None,
    at: Annotated[
        str | None, option("Backup to restore. Default: the newest.", "--at", metavar="NAME")
    ] = None,
    list_them: Annotated[bool, option("List the backups, restore none.", "--list")] = False,
    json: AsJson = False,
) -> None:
    """Restore a backup into a new directory, after checking all of it.

    Exits with 1, and lists the damage, if the backup was restored, but the
    source was damaged when it was saved; with 2 if nothing was restored. --list
    exits with 1 if there are no backups.
    """
    if list_them:
        _list(source, json)
        return
    if target is None:
        raise typer.BadParameter("give the new directory, or --list")
    _refuse_url(target, "TARGET")
    with progress_bar(in_bytes=True) as progress:
        task = progress.add_task("restoring", total=None)
        done = restore_backup(
            source,
            target,
            name=at,
            on_file=lambda path, written: progress.update(task, advance=written),
        )
    if json:
        problems = [_problem(queue, one) for queue, one in done.problems]
        print_json(done._asdict() | {"problems": problems})
    else:
        for queue, one in done.problems:
            print_stderr(printable(_problem(queue, one)))
        print_text(
            f"{printable(target)}: restored {number(done.queues, 'queue')} with "
            f"{number(done.entries, 'message or event', 'messages and events')} "
            f"({size(done.size_bytes)}) from backup {done.name}; all checksums match."
        )
    if done.problems:
        raise typer.Exit(1)


def _list(source: str, json: bool) -> None:
    target = BackupTarget(source)
    if not target.exists():
        raise InvalidInput(f"{source} does not exist")
    found = [target.manifest(name) for name in target.names()]
    if not found:
        exit_no(printable(f"{source} has no backups"))
    print_list(
        found,
        json,
        lambda one: {
            "name": one.name,
            "began_at": one.began_at_ns / NS,
            "kind": one.kind,
            "source": one.source,
            "queues": len(one.queues),
            "files": len(one.files),
            "size_bytes": one.size_bytes,
        },
        table("backup", "began", "queues", "size", "of", right=["queues", "size"], rest="of"),
        lambda one: (
            one.name,
            local_time(one.began_at_ns / NS),
            number(len(one.queues)),
            size(one.size_bytes),
            printable(one.source),
        ),
    )


def _problem(queue: str, problem: Damage) -> str:
    return f"{queue + '/' if queue else ''}{problem}"


def _refuse_url(location: str, what: str) -> None:
    scheme, separator, _ = location.partition("://")
    if not separator:
        return
    if scheme in ("postgresql", "postgres"):
        raise InvalidInput(
            "a database is backed up with PostgreSQL's own tools: pg_dump for one copy, "
            "pg_basebackup with archived WAL for any point in time. To get files that `penstock "
            "backup` can save, stop the brokers and run `penstock migrate-store`."
        )
    raise InvalidInput(
        f"{what} is a URL; give a directory. Run the command on the broker's machine, with its "
        f"data directory: the broker may keep running."
    )


def _allow_many_files() -> None:
    """Raise the limit of open files: all new segments of a queue are open at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FEW_FILES if hard == resource.RLIM_INFINITY else min(hard, _FEW_FILES)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
