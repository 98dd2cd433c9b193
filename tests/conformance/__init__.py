"""Three servers side by side: ors-sdk's own, openreward's own, and ours with the same environments in containers."""
