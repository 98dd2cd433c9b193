"""The runtime, in this process and without containers."""
