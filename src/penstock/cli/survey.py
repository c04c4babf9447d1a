"""Commands that survey a queue: who works on its messages, why messages died, and its limits."""

from penstock.cli.formatting import duration, local_time, number, printable
from penstock.cli.options import MAIN, AsJson, InGroup, QueuePath
from penstock.cli.targets import open_to_read
from penstock.cli.terminal import exit_no, out, print_json, table
from penstock.model import NS
from penstock.operations import GetLimits, ListConsumers, ListDeadReasons


def consumers(path: QueuePath, group: InGroup = MAIN, json: AsJson = False) -> None:
    """Show who holds leases, how many, and the leases that end first.

    Exits with 1 if no message is leased.
    """
    with open_to_read(path) as queue:
        found = queue.consumers(group=group)
    if json:
        print_json(ListConsumers.answer.encode(found))
    elif found.leases:
        made = table("holder", "leases", "since", "first ends", right=["leases"])
        for one in found.holders:
            times = (local_time(at_ns / NS) for at_ns in (one.leased_ns, one.deadline_ns))
            made.add_row(printable(one.holder) or "(no name)", number(one.leases), *times)
        out.print(made)
        out.line()
        made = table("message", "holder", "attempt", "lease", right=["attempt", "lease"])
        for held in found.held:
            length = duration((held.deadline_ns - held.leased_ns) / NS)
            made.add_row(held.id, printable(held.holder), str(held.attempt), length)
        out.print(made)
    if not found.leases:
        exit_no(f"no message is leased in group {group!r}")


def reasons(path: QueuePath, group: InGroup = MAIN, json: AsJson = False) -> None:
    """Show the dead letters by their reasons, the most frequent first.

    Numbers and ids in a reason are shown as #. Exits with 1 if there are none.
    """
    with open_to_read(path) as queue:
        found = queue.dead_reasons(group=group)
    if json:
        print_json(ListDeadReasons.answer.encode(found))
    elif found.total:
        made = table("messages", "first", "last", "reason", right=["messages"])
        for one in found.reasons:
            times = (local_time(at_ns / NS) for at_ns in (one.first_ns, one.last_ns))
            reason = printable(one.reason) or "(no reason given)"
            made.add_row(number(one.messages), *times, reason)
        out.print(made)
    if not found.total:
        exit_no(f"there are no dead letters in group {group!r}")


def limits(path: QueuePath, json: AsJson = False) -> None:
    """Show the limits that are set, how much of each is used, and what happens beyond it.

    Of a rate, it is the burst that is used: it comes back at the rate.
    """
    with open_to_read(path) as queue:
        found = queue.limits()
    if json:
        print_json(GetLimits.answer.encode(found))
        return
    made = table("limit", "used", "most", "then", right=["used", "most"])
    for one in found.limits:
        used, most = (f"{value:,.1f}".removesuffix(".0") for value in (one.used, one.most))
        made.add_row(one.name, used, most, printable(one.effect))
    out.print(made)
