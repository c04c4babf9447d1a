"""The interfaces of other queues, for clients that exist for them. A dialect only translates."""
