"""The native interface, a module for each noun."""
