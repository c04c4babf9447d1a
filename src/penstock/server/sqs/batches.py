"""What all batches of SQS have in common: 1 to 10 entries, with ids that differ."""

import re
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.server.sqs.errors import SqsError

MAX_ENTRIES = 10
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)


class Entry(Protocol):
    """An entry of a batch."""

    Id: str


def check_entries(kind: str, entries: Sequence[Entry]) -> None:
    """Raise an error of SQS that refuses the whole batch. `kind` names its entries."""
    if not entries:
        raise SqsError("EmptyBatchRequest", f"There should be at least one {kind} in the request.")
    if len(entries) > MAX_ENTRIES:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {MAX_ENTRIES}. You have sent "
            f"{len(entries)}.",
        )
    seen = set()
    for entry in entries:
        if not _ID.fullmatch(entry.Id):
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and "
                "underscores. It can be at most 80 letters long.",
            )
        if entry.Id in seen:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {entry.Id} repeated.")
        seen.add(entry.Id)


def failed(id: str, error: SqsError) -> dict[str, Any]:
    """Return the answer for an entry that failed."""
    return {
        "Id": id,
        "SenderFault": error.is_of_sender,
        "Code": error.former_code,
        "Message": str(error),
    }


def batch_answer(good: list[dict[str, Any]], bad: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {"Successful": good}
    if bad:
        answer["Failed"] = bad
    return answer
