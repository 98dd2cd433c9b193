"""Whatever dies, in whatever order, under load: nothing leaks, nothing is lost, nothing runs twice. On a real engine."""
