"""Penstock's tasks in web frameworks. Import the module of the framework that you use."""
