"""The documentation: what it says is so."""
