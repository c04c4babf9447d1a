"""`penstock placement`: which cluster serves which queue, and what moves if clusters are added."""

import json as json_module
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.formatting import number
from penstock.cli.options import AsJson, option
from penstock.cli.terminal import out, print_json, print_text, table
from penstock.errors import InvalidInput
from penstock.placement import Table, apply, moves_by_hash, moves_to_even, place

placement_app = typer.Typer(
    name="placement", help="Plan which cluster serves which queue.", no_args_is_help=True
)


@placement_app.callback()
def placement() -> None:
    """Plan which cluster serves which queue."""


@placement_app.command("simulate")
def simulate(
    queues: Annotated[int, option("Number of queues.", min=1, max=10_000_000)] = 10_000,
    clusters: Annotated[int, option("Number of clusters.", min=1, max=10_000)] = 4,
    add: Annotated[int, option("Clusters that are added.", min=1, max=10_000)] = 1,
    table_file: Annotated[
        Path | None,
        option("JSON file with a table: an object, queue to cluster.", "--table", metavar="FILE"),
    ] = None,
    json: AsJson = False,
) -> None:
    """Show how many queues move when clusters are added.

    A table of queues is compared with choosing the cluster by a hash. With
    --table, the queues and clusters are those of the file, and --json lists
    the moves and the table after them.
    """
    if table_file is None:
        before = [f"cluster-{n}" for n in range(1, clusters + 1)]
        now = place((f"queue-{n}" for n in range(queues)), before)
    else:
        now = _read(table_file)
        before = sorted(set(now.values()))
    after = [*before, *_new_names(before, add)]
    moves = moves_to_even(now, after)
    then = apply(now, moves)
    by_hash = moves_by_hash(now, before, after)
    if json:
        print_json(
            {
                "queues": len(now),
                "clusters": before,
                "added": after[len(before) :],
                "moved": len(moves),
                "moved_by_hash": len(by_hash),
                "moves": [move._asdict() for move in moves] if table_file else [],
                "table": dict(then) if table_file else {},
            }
        )
        return
    shown = table("placement", "queues moved", "share", right=("queues moved", "share"))
    for name, moved in (
        ("table, new queues only", 0),
        ("table, evened out", len(moves)),
        ("hash % n", len(by_hash)),
    ):
        shown.add_row(name, number(moved), f"{moved / len(now):.0%}")
    out.print(shown)
    held = Counter(then.values())
    most, least = (choose(held[one] for one in after) for choose in (max, min))
    print_text(
        f"{number(len(now), 'queue')} on {len(before)} clusters, then {len(after)}: "
        f"{number(least)} to {number(most)} queues on each when evened out"
    )


def _new_names(before: list[str], count: int) -> list[str]:
    names = (f"cluster-{n}" for n in range(1, len(before) + count + len(before) + 1))
    return [name for name in names if name not in before][:count]


def _read(file: Path) -> Table:
    try:
        found = json_module.loads(file.read_text())
    except ValueError as error:
        raise InvalidInput(f"{file} is not JSON: {error}") from None
    if not isinstance(found, dict) or not found:
        raise InvalidInput(f"{file} has no queues: write an object, such as " + _EXAMPLE)
    for queue, cluster in found.items():
        if not isinstance(cluster, str):
            raise InvalidInput(f"{file}: the cluster of {queue!r} is not text")
    return found


_EXAMPLE = '{"shop/orders": "east"}'
