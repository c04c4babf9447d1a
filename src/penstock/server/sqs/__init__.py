"""Amazon SQS's interface: its JSON protocol, on the port of HTTP or on one of its own.

Each module translates one part: `names` (queue URLs and ARNs), `attributes` (of queues), `records`
(what SQS knows of a queue and Penstock does not), `message_attributes`, `signatures`, `errors`.
`actions` is the table of all calls. Every rule about messages is the broker's.
"""
