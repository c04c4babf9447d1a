"""What the webhooks tell the log: an event, and its fields. Never a payload, never a secret."""

import logging

log = logging.getLogger("penstock.webhooks")


def warn(event: str, webhook: str, why: object) -> None:
    """Something that whoever runs the broker may want to look after."""
    log.warning(event, extra={"fields": {"webhook": webhook, "reason": str(why)}})


def fail(event: str, webhook: str, error: BaseException) -> None:
    """A defect of ours: with its traceback."""
    log.error(event, exc_info=error, extra={"fields": {"webhook": webhook}})
