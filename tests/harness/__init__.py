"""What the tests stand on: files in memory, recorded and crashed at will, and files that fail."""
