"""`penstock pause` and `penstock resume`: stop and start delivery."""

from penstock.cli.opening import writing
from penstock.cli.parameters import AsJson, QueuePath
from penstock.cli.terminal import say, write_json


def pause(path: QueuePath, json: AsJson = False) -> None:
    """Deliver nothing until `penstock resume`. Publishing and settling go on."""
    with writing(path) as queue:
        queue.pause()
    if json:
        write_json({"paused": True})
    else:
        say("Paused: nothing is delivered until `penstock resume`.")


def resume(path: QueuePath, json: AsJson = False) -> None:
    """Deliver again."""
    with writing(path) as queue:
        queue.resume()
    if json:
        write_json({"paused": False})
    else:
        say("Resumed.")
