"""`penstock webhooks`: push subscriptions of a broker's queues."""

from typing import Annotated

import typer
from rich.text import Text

from penstock.cli.default_command import group_settings
from penstock.cli.opening import look_options
from penstock.cli.parameters import AsJson, BrokerUrl, QueueAtBroker
from penstock.cli.places import remote
from penstock.cli.terminal import complain, say, show_table, table, write_json, write_json_line
from penstock.cli.words import moment, plain
from penstock.client import Webhook

webhooks_app = typer.Typer(
    **group_settings("webhooks", "Push subscriptions: messages are posted to URLs.")
)

# The circuit breaker, in words for those who do not know what an open circuit is.
_STATES = {"closed": "pushing", "open": "resting", "half_open": "trying again"}
_Id = Annotated[str, typer.Argument(metavar="ID", help="As listed.", show_default=False)]


@webhooks_app.command("list")
def list_webhooks(broker: BrokerUrl, queue: QueueAtBroker, json: AsJson = False) -> None:
    """List the subscriptions of a queue."""
    with remote(broker, look_options()) as opened:
        found = opened.webhooks(queue)
    if not found:
        complain(f"queue {queue} has no webhooks")
        raise typer.Exit(1)
    if json:
        for one in found:
            write_json_line(one._asdict())
        return
    made = table("id", "state", "url", rest="url")
    for one in found:
        state = _STATES[one.circuit] if one.enabled else "disabled"
        made.add_row(one.id, state, Text(plain(one.url)))
    show_table(made)


@webhooks_app.command("create")
def create_webhook(
    broker: BrokerUrl,
    queue: QueueAtBroker,
    url: Annotated[str, typer.Argument(metavar="URL", help="Who is called.", show_default=False)],
    secret: Annotated[
        str | None, typer.Option(metavar="WHSEC", help="Signs deliveries; made if none is given.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="NAME", help="Whose messages are pushed.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Push the messages of a queue to a URL from now on, and show the secret that signs them."""
    with remote(broker) as opened:
        made = opened.create_webhook(queue, url, secret=secret, group=group)
    if json:
        write_json(made._asdict())
        return
    _say_what_is_pushed(made)
    _say_secret(made)


@webhooks_app.command("change")
def change_webhook(
    broker: BrokerUrl,
    webhook: _Id,
    url: Annotated[str | None, typer.Option(metavar="URL", help="Another one.")] = None,
    rotate_secret: Annotated[
        bool, typer.Option("--rotate-secret", help="Another secret; the old one signs for a day.")
    ] = False,
    enable: Annotated[
        bool | None, typer.Option("--enable/--disable", help="Whether it is pushed.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Change a subscription; what is not given stays."""
    if url is None and enable is None and not rotate_secret:
        raise typer.BadParameter(
            "give what is to change: --url, --rotate-secret, --enable or --disable"
        )
    with remote(broker) as opened:
        made = opened.change_webhook(webhook, url=url, rotate_secret=rotate_secret, enabled=enable)
    if json:
        write_json(made._asdict())
        return
    if url is not None:
        _say_what_is_pushed(made)
    if enable is not None:
        say(f"Webhook {made.id} is {'enabled' if made.enabled else 'disabled'}.")
    _say_secret(made)


@webhooks_app.command("delete")
def delete_webhook(broker: BrokerUrl, webhook: _Id, json: AsJson = False) -> None:
    """Push no more."""
    with remote(broker) as opened:
        opened.delete_webhook(webhook)
    if json:
        write_json({"id": webhook, "deleted": True})
    else:
        say(f"Webhook {webhook} is deleted.")


@webhooks_app.command("deliveries")
def list_deliveries(broker: BrokerUrl, webhook: _Id, json: AsJson = False) -> None:
    """List what became of the latest deliveries, the latest first."""
    with remote(broker, look_options()) as opened:
        found = opened.webhook_deliveries(webhook)
    if not found:
        complain("nothing was delivered so far")
        raise typer.Exit(1)
    if json:
        for one in found:
            write_json_line(one._asdict())
        return
    heads = ("when", "message", "attempt", "outcome", "status", "reason")
    made = table(*heads, rest="reason", wrap_rest=True)
    for one in found:
        made.add_row(
            moment(one.at),
            one.message_id,
            str(one.attempt),
            one.outcome,
            str(one.status or ""),
            Text(plain(one.reason)),
        )
    show_table(made)


def _say_what_is_pushed(webhook: Webhook) -> None:
    say(f"Webhook {webhook.id} pushes {webhook.namespace}/{webhook.queue} to {plain(webhook.url)}.")


def _say_secret(webhook: Webhook) -> None:
    if webhook.secret:
        say(f"Its secret, shown only now: {webhook.secret}")
