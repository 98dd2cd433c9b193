"""The tests, one folder for each part; ``tests.docker`` and its like drive real containers."""
