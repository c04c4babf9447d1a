"""Move the messages of other queues into a new Penstock queue: `penstock import`.

One module a source. `writing.py` writes what they read.
"""
