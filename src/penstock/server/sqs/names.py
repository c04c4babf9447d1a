"""Queue URLs, ARNs and queue names. Pure functions.

A queue has the same name in SQS and in Penstock, and SQS's account is the namespace:

    http://HOST/default/orders                    the URL of queue `orders` in namespace `default`
    arn:aws:sqs:us-east-1:default:orders          its ARN

Of a URL only the last two parts of its path count, so one made by another server works as well.
"""

import re
from urllib.parse import urlsplit

from penstock.broker import QueueName
from penstock.errors import InvalidInput
from penstock.server.sqs.errors import SqsError, invalid_value, no_such_queue

FIFO_SUFFIX = ".fifo"
DEFAULT_REGION = "us-east-1"
_NEW_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}|(?=.{6,64}$)[A-Za-z0-9_-]+\.fifo", re.ASCII)


def is_fifo(queue: QueueName) -> bool:
    return queue.name.endswith(FIFO_SUFFIX)


def check_new_name(namespace: str, name: str) -> QueueName:
    """Return the name of a queue to be created."""
    if not _NEW_NAME.fullmatch(name):
        raise invalid_value(
            "QueueName",
            name,
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 64 in length; "
            "the name of a FIFO queue ends with .fifo",
        )
    try:
        return QueueName.checked(namespace, name)
    except InvalidInput as error:
        raise invalid_value("QueueName", name, str(error)) from None


def existing_name(namespace: str, name: str) -> QueueName:
    """Return the name of a queue that may exist. Raise QueueDoesNotExist for what is no name."""
    try:
        return QueueName.checked(namespace, name)
    except InvalidInput:
        raise no_such_queue() from None


def queue_of_url(url: str) -> QueueName:
    """Return the queue that a URL names.

    >>> queue_of_url("https://sqs.eu-west-1.amazonaws.com/shop/orders")
    QueueName(namespace='shop', name='orders')
    """
    try:
        parts = urlsplit(url).path.strip("/").split("/")
    except ValueError:
        parts = []
    if len(parts) < 2:
        raise SqsError("InvalidAddress", f"The address {url} is not valid for this endpoint.")
    return existing_name(parts[-2], parts[-1])


def url_of_queue(base: str, queue: QueueName) -> str:
    """Return the URL of a queue at a server, whose own URL is `base`."""
    return f"{base}/{queue.namespace}/{queue.name}"


def queue_of_arn(arn: str) -> QueueName | None:
    """Return the queue that an ARN names; None if it is not the ARN of a queue.

    >>> queue_of_arn("arn:aws:sqs:us-east-1:shop:orders")
    QueueName(namespace='shop', name='orders')
    """
    parts = arn.split(":")
    if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sqs":
        return None
    try:
        return QueueName.checked(parts[4], parts[5])
    except InvalidInput:
        return None


def arn_of_queue(region: str, queue: QueueName) -> str:
    return f"arn:aws:sqs:{region}:{queue.namespace}:{queue.name}"
