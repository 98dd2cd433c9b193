"""Real host processes on real containers."""
