"""Commands that administer a broker: queues, namespaces, webhooks."""

from collections import Counter
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli.formatting import Json, duration, local_time, number, printable, size, stats_json
from penstock.cli.options import (
    AsJson,
    BrokerTarget,
    BrokerUrl,
    QueueName,
    Settings,
    Yes,
    argument,
    command_group,
    group_option,
    option,
    parse_settings,
    parse_size,
)
from penstock.cli.targets import (
    NamespaceRow,
    QueueRow,
    namespace_rows,
    open_broker,
    queue_names,
    queue_rows,
    read_options,
)
from penstock.cli.terminal import (
    confirm,
    exit_no,
    print_json,
    print_list,
    print_result,
    print_text,
    table,
)
from penstock.client import QueueDetails, Webhook, WebhookDelivery
from penstock.errors import AlreadyExists

queues_app = command_group("queues", "List, create, change and delete the queues of a broker.")
namespaces_app = command_group("namespaces", "List, create and delete the namespaces of a broker.")
webhooks_app = command_group("webhooks", "Push the messages of a queue to a URL.")


# -- queues ----------------------------------------------------------------------------------------


@queues_app.command("list")
def list_queues(
    broker: BrokerTarget,
    namespace: Annotated[
        str | None, option("Only queues of this namespace.", "--namespace", "-n", metavar="NAME")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the queues with the number of messages in each state. Exits with 1 if there are none."""
    rows = queue_rows(broker, namespace)
    if not rows:
        exit_no("there are no queues")
    print_list(rows, json, queue_json, queue_table(), queue_cells)


# Parked and blocked messages both wait for another one: a terminal has no room for each.
_COUNTS = ("ready", "scheduled", "leased", "held", "dead")


def queue_table(*columns: str) -> Table:
    """Return an empty table of queues; `columns` come before the states."""
    heads = [*columns, *_COUNTS, "oldest ready"]
    return table("queue", *heads, right=heads, rest="queue")  # names are cut, numbers are not


def queue_cells(row: QueueRow, *cells: str) -> list[str | Text]:
    """Return a row of `queue_table`, or only the problem of a queue that cannot be read."""
    if row.stats is None:
        return [Text(printable(f"{row.queue}: {row.problem}"), style="red")]
    stats = row.stats
    held = stats.parked + stats.blocked
    counts = map(number, (stats.ready, stats.scheduled, stats.leased, held, stats.dead))
    oldest = duration(row.stats.oldest_ready_age_s) if row.stats.ready else ""
    return [f"{row.queue}{' (paused)' if row.stats.paused else ''}", *cells, *counts, oldest]


def queue_json(row: QueueRow) -> Json:
    """Return a queue and its counts."""
    stats = None if row.stats is None else stats_json(row.stats)
    return {"queue": row.queue, "stats": stats, "problem": row.problem or None}


@queues_app.command("create")
def create_queue(
    broker: BrokerUrl, queue: QueueName, setting: Settings = None, json: AsJson = False
) -> None:
    """Create a queue. A queue that exists with the same settings is not changed."""
    with open_broker(broker) as opened:
        try:
            made = opened.create_queue(queue, **parse_settings(setting))
        except AlreadyExists as error:
            raise AlreadyExists(
                f"{error} (penstock queues change BROKER QUEUE --set NAME=VALUE)"
            ) from None
    _print_queue(made, "created", json)


@queues_app.command("change")
def change_queue(
    broker: BrokerUrl, queue: QueueName, setting: Settings = None, json: AsJson = False
) -> None:
    """Change some settings of a queue."""
    changes = parse_settings(setting)
    if not changes:
        raise typer.BadParameter("give what is to change: --set NAME=VALUE")
    with open_broker(broker) as opened:
        made = opened.change_queue(queue, **changes)
    _print_queue(made, "changed", json)


def _print_queue(made: QueueDetails, verb: str, as_json: bool) -> None:
    name = f"{made.namespace}/{made.name}"
    document = {"queue": name, "settings": made.settings.as_dict()}
    print_result(as_json, document, f"Queue {name} {verb}.")


@queues_app.command("delete")
def delete_queue(
    broker: BrokerUrl, queue: QueueName, yes: Yes = False, json: AsJson = False
) -> None:
    """Delete a queue with all its messages. Asks first."""
    with open_broker(broker) as opened:
        confirm(f"Delete queue {queue} and all its messages?", yes=yes)
        opened.delete_queue(queue)
    print_result(json, {"queue": queue, "deleted": True}, f"Queue {queue} deleted.")


# -- namespaces ------------------------------------------------------------------------------------

_NamespaceName = Annotated[str, argument("NAME", "Name of the namespace.")]


@namespaces_app.command("list")
def list_namespaces(broker: BrokerTarget, json: AsJson = False) -> None:
    """List the namespaces with their quotas and queues. Exits with 1 if there are none."""
    rows = namespace_rows(broker)
    if not rows:
        exit_no("there are no namespaces")
    queues = Counter(queue.partition("/")[0] for queue in queue_names(broker))

    def document(one: NamespaceRow) -> Json:
        return {**one._asdict(), "queues": queues[one.name]}

    def row(one: NamespaceRow) -> list[str]:
        return [
            one.name,
            number(queues[one.name]),
            number(one.max_queues) if one.max_queues else "",
            size(one.max_bytes) if one.max_bytes else "",
            local_time(one.created_at) if one.created_at else "",
        ]

    heads = ["queues", "max queues", "max bytes"]
    print_list(rows, json, document, table("namespace", *heads, "created", right=heads), row)


@namespaces_app.command("create")
def create_namespace(
    broker: BrokerUrl,
    name: _NamespaceName,
    max_queues: Annotated[int, option("Quota of queues; 0: no quota.", min=0)] = 0,
    max_bytes: Annotated[
        int, option("Quota of bytes; 0: no quota.", metavar="SIZE", parser=parse_size)
    ] = 0,
    setting: Settings = None,
    json: AsJson = False,
) -> None:
    """Create a namespace. Its new queues start with the settings given here."""
    with open_broker(broker) as opened:
        made = opened.create_namespace(
            name, defaults=parse_settings(setting), max_queues=max_queues, max_bytes=max_bytes
        )
    document = {**made._asdict(), "defaults": dict(made.defaults)}
    print_result(json, document, f"Namespace {made.name} created.")


@namespaces_app.command("delete")
def delete_namespace(
    broker: BrokerUrl,
    name: _NamespaceName,
    force: Annotated[bool, option("Delete its queues too.", "--force")] = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Delete a namespace. With --force its queues are deleted too, after asking."""
    with open_broker(broker) as opened:
        if force:
            confirm(f"Delete namespace {name} with all its queues and messages?", yes=yes)
        opened.delete_namespace(name, force=force)
    print_result(json, {"name": name, "deleted": True}, f"Namespace {name} deleted.")


# -- webhooks --------------------------------------------------------------------------------------

# States of the circuit breaker, for readers who do not know what an open circuit means.
_CIRCUITS = {"closed": "pushing", "open": "resting", "half_open": "trying again"}
_WebhookId = Annotated[str, argument("ID", "Id of the webhook, as listed.")]


@webhooks_app.command("list")
def list_webhooks(broker: BrokerUrl, queue: QueueName, json: AsJson = False) -> None:
    """List the webhooks of a queue. Exits with 1 if there are none."""
    with open_broker(broker, read_options()) as opened:
        found = opened.webhooks(queue)
    if not found:
        exit_no(f"queue {queue} has no webhooks")

    def row(one: Webhook) -> list[str]:
        return [one.id, _CIRCUITS[one.circuit] if one.enabled else "disabled", printable(one.url)]

    print_list(found, json, Webhook._asdict, table("id", "state", "url", rest="url"), row)


@webhooks_app.command("create")
def create_webhook(
    broker: BrokerUrl,
    queue: QueueName,
    url: Annotated[str, argument("URL", "URL that messages are posted to.")],
    secret: Annotated[
        str | None, option("Secret that signs deliveries. Default: a new one.", metavar="WHSEC")
    ] = None,
    group: Annotated[
        str | None, group_option("Group whose messages are pushed. Default: a group of its own.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Push new messages of a queue to a URL, and print the secret that signs them."""
    with open_broker(broker) as opened:
        made = opened.create_webhook(queue, url, secret=secret, group=group)
    _print_webhook(made, json, url=True)


@webhooks_app.command("change")
def change_webhook(
    broker: BrokerUrl,
    webhook: _WebhookId,
    url: Annotated[str | None, option("New URL.", metavar="URL")] = None,
    rotate_secret: Annotated[
        bool, option("Make a new secret; the old one signs for a day.", "--rotate-secret")
    ] = False,
    enable: Annotated[bool | None, option("Start or stop pushing.", "--enable/--disable")] = None,
    json: AsJson = False,
) -> None:
    """Change a webhook. Give at least one option."""
    if url is None and enable is None and not rotate_secret:
        raise typer.BadParameter(
            "give what is to change: --url, --rotate-secret, --enable or --disable"
        )
    with open_broker(broker) as opened:
        made = opened.change_webhook(webhook, url=url, rotate_secret=rotate_secret, enabled=enable)
    _print_webhook(made, json, url=url is not None, enabled=enable is not None)


def _print_webhook(made: Webhook, as_json: bool, *, url: bool, enabled: bool = False) -> None:
    if as_json:
        print_json(made._asdict())
        return
    if url:
        queue = f"{made.namespace}/{made.queue}"
        print_text(f"Webhook {made.id} pushes {queue} to {printable(made.url)}.")
    if enabled:
        print_text(f"Webhook {made.id} is {'enabled' if made.enabled else 'disabled'}.")
    if made.secret:
        print_text(f"Its secret, shown only now: {made.secret}")


@webhooks_app.command("delete")
def delete_webhook(broker: BrokerUrl, webhook: _WebhookId, json: AsJson = False) -> None:
    """Delete a webhook."""
    with open_broker(broker) as opened:
        opened.delete_webhook(webhook)
    print_result(json, {"id": webhook, "deleted": True}, f"Webhook {webhook} deleted.")


@webhooks_app.command("deliveries")
def list_deliveries(broker: BrokerUrl, webhook: _WebhookId, json: AsJson = False) -> None:
    """List the latest deliveries of a webhook, newest first. Exits with 1 if there are none."""
    with open_broker(broker, read_options()) as opened:
        found = opened.webhook_deliveries(webhook)
    if not found:
        exit_no("there are no deliveries yet")

    def row(one: WebhookDelivery) -> list[str]:
        status = str(one.status or "")
        answer = [one.outcome, status, printable(one.reason)]
        return [local_time(one.at), one.message_id, str(one.attempt), *answer]

    columns = ("when", "message", "attempt", "outcome", "status", "reason")
    made = table(*columns, rest="reason", wrap_rest=True)
    print_list(found, json, WebhookDelivery._asdict, made, row)
