"""HTTP: how the broker is reached from other processes. Transports only translate."""
