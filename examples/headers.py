"""Send headers and a content type with a message."""

import json
from tempfile import TemporaryDirectory

import penstock

with TemporaryDirectory() as folder, penstock.open(folder) as queue:
    queue.enqueue(
        json.dumps({"order": 7}),
        headers={"tenant": "acme", "trace": "4bf92f35"},
        content_type="application/json",
    )
    message = queue.dequeue()
    assert message is not None
    print(message.content_type, dict(message.headers))
    print(json.loads(message.payload)["order"])
