"""Compress payloads on disk."""

import json
from tempfile import TemporaryDirectory

import penstock

report = json.dumps([{"customer": n, "status": "active"} for n in range(5000)]).encode()

with TemporaryDirectory() as folder, penstock.open(folder, compression="gzip") as queue:
    queue.enqueue(report)
    queue.enqueue(b"too short to be worth it")
    queue.enqueue(report, compression="none")  # one message can say otherwise
    before = queue.stats().storage.message_log_bytes

    print("unchanged:", queue.dequeue_batch(1)[0].payload == report)
    print("saved:", 2 * len(report) - before > len(report) // 2)
