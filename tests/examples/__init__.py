"""The example environments, in this process and without containers."""
