"""HTTP interfaces of other queues, for their existing clients. A dialect only translates."""
