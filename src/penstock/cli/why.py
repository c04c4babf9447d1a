"""`penstock why`: why a message is not being delivered now."""

from penstock.cli.opening import looking
from penstock.cli.parameters import MAIN, AsJson, InGroup, MessageId, QueuePath
from penstock.cli.terminal import out, say, show_facts, write_json
from penstock.cli.words import plain


def why(path: QueuePath, message: MessageId, group: InGroup = MAIN, json: AsJson = False) -> None:
    """Say why a message is not being delivered now."""
    with looking(path) as queue:
        answer = queue.why(message, group=group)
    if json:
        write_json({**answer._asdict(), "details": dict(answer.details)})
        return
    say(plain(answer.sentence))
    out.line()
    show_facts(
        [
            ("message", answer.id),
            ("group", answer.group),
            ("state", answer.state),
            ("code", answer.code),
            *((name, plain(str(value))) for name, value in answer.details.items()),
        ]
    )
