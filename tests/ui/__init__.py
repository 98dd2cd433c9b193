"""The dashboard in a real Chromium, on a real host with real containers."""
