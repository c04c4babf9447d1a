"""Commands that operate a queue: pause, resume, purge, cancel, seek, compact, groups."""

from typing import Annotated

import typer

from penstock.cli.formatting import number, size
from penstock.cli.options import (
    MAIN,
    AsJson,
    InGroup,
    Position,
    QueuePath,
    Yes,
    argument,
    command_group,
    group_option,
    takes,
)
from penstock.cli.targets import open_to_read, open_to_write
from penstock.cli.terminal import (
    confirm,
    print_json,
    print_list,
    print_result,
    print_stderr,
    print_text,
    progress_bar,
    table,
)
from penstock.model import GroupStats

groups_app = command_group("groups", "List, create and delete the consumer groups of a queue.")

_GROUP_COUNTS = ("ready", "scheduled", "leased", "parked", "blocked", "dead", "acked")
_GroupName = Annotated[str, argument("NAME", "Name of the group.")]


def pause(path: QueuePath, json: AsJson = False) -> None:
    """Stop delivery until `penstock resume`. Publishing and settling still work."""
    with open_to_write(path) as queue:
        queue.pause()
    sentence = "Paused: no message is delivered until `penstock resume`."
    print_result(json, {"paused": True}, sentence)


def resume(path: QueuePath, json: AsJson = False) -> None:
    """Start delivery again after `penstock pause`."""
    with open_to_write(path) as queue:
        queue.resume()
    print_result(json, {"paused": False}, "Resumed.")


def purge(
    path: QueuePath,
    group: Annotated[str | None, group_option("Only this group. Default: every group.")] = None,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Remove all waiting messages: ready, scheduled, parked and blocked ones. Asks first."""
    where = "every group" if group is None else f"group {group!r}"
    with open_to_write(path) as queue:
        queue.stats()  # raises if a broker does not have the queue
        confirm(f"Remove all waiting messages from {where} of {path}?", yes=yes)
        count = queue.purge(group=group)
    print_result(json, {"purged": count}, f"{number(count)} purged.")  # counted in each group


def cancel(
    path: QueuePath,
    ids: Annotated[list[str], argument("ID", "Ids of messages.")],
    json: AsJson = False,
) -> None:
    """Remove messages from every group, so that they are not delivered any more.

    Exits with 1 if all of them were done already.
    """
    with open_to_write(path) as queue:
        cancelled = [id_ for id_ in ids if queue.cancel(id_)]
    if json:
        print_json({"cancelled": cancelled})
    elif cancelled:
        print_text(f"{number(len(cancelled), 'message')} cancelled.")
    done = len(ids) - len(cancelled)
    if done and not json:
        print_stderr(f"{number(done, 'message')} {'was' if done == 1 else 'were'} done already")
    if not cancelled:
        raise typer.Exit(1)


@takes(position=Position)
def seek(path: QueuePath, position: Position, group: InGroup = MAIN, json: AsJson = False) -> None:
    """Move a group back to deliver messages again, or forward to skip messages.

    Give one of --to, --seq, --id and --time. The leases of the group end.
    Dead letters before the new position stay dead.
    """
    chosen = position.arguments(required=True)
    with open_to_write(path) as queue:
        target = queue.seek(**chosen, group=group)
        ready = queue.stats().groups[group].ready
    sentence = f"Group {group!r} continues at message {number(target)}; {number(ready)} ready."
    print_result(json, {"group": group, "seq": target, "ready": ready}, sentence)


def compact(path: QueuePath, json: AsJson = False) -> None:
    """Free the disk space of messages that every group has finished and retention does not keep."""
    with progress_bar() as progress:
        task = progress.add_task("opening", total=None)
        with open_to_write(path) as queue:
            progress.update(task, description="compacting")
            result = queue.compact(
                on_progress=lambda so_far: progress.update(
                    task, description=f"compacting, {size(so_far.bytes_freed)} freed"
                )
            )
            progress.update(task, description="closing")
    document = {
        "bytes_freed": result.bytes_freed,
        "segments_removed": result.segments_removed,
        "segments_rewritten": result.segments_rewritten,
    }
    sentence = (
        f"{size(result.bytes_freed)} freed: {number(result.segments_removed, 'segment')} removed, "
        f"{number(result.segments_rewritten)} rewritten."
    )
    print_result(json, document, sentence)


# -- groups ----------------------------------------------------------------------------------------


@groups_app.command("list")
def list_groups(path: QueuePath, json: AsJson = False) -> None:
    """List the groups with the number of messages in each state."""
    with open_to_read(path) as queue:
        groups = list(queue.stats().groups.items())

    def document(item: tuple[str, GroupStats]) -> dict[str, object]:
        return {"group": item[0], **item[1]._asdict()}

    def row(item: tuple[str, GroupStats]) -> list[str]:
        return [item[0], *(number(getattr(item[1], count)) for count in _GROUP_COUNTS)]

    print_list(groups, json, document, table("group", *_GROUP_COUNTS, right=_GROUP_COUNTS), row)


@groups_app.command("create")
@takes(position=Position)
def create_group(
    path: QueuePath, name: _GroupName, position: Position, json: AsJson = False
) -> None:
    """Create a group. It starts at the beginning of the queue unless an option says otherwise.

    A group that exists is not changed.
    """
    chosen = position.arguments(required=False)
    with open_to_write(path) as queue:
        queue.groups.create(name, **chosen)
        ready = queue.stats().groups[name].ready
    print_result(json, {"group": name, "ready": ready}, f"Group {name!r}: {number(ready)} ready.")


@groups_app.command("delete")
def delete_group(path: QueuePath, name: _GroupName, yes: Yes = False, json: AsJson = False) -> None:
    """Delete a group with its position, leases and dead letters. Asks first."""
    with open_to_write(path) as queue:
        confirm(f"Delete group {name!r} of {path}, with its position and dead letters?", yes=yes)
        queue.groups.delete(name)
    print_result(json, {"group": name, "deleted": True}, f"Group {name!r} deleted.")
