"""`penstock ack`: the work is done."""

from penstock.cli.opening import writing
from penstock.cli.parameters import AsJson, QueuePath, Receipts
from penstock.cli.receipts import receipts_in
from penstock.cli.terminal import say, write_json
from penstock.cli.words import number


def ack(path: QueuePath, receipts: Receipts, json: AsJson = False) -> None:
    """Say that leased messages are done with, by their receipts."""
    found = receipts_in(receipts)
    with writing(path) as queue:
        queue.ack(found)
    if json:
        write_json({"acked": len(found)})
    else:
        say(f"{number(len(found), 'message')} acked.")
