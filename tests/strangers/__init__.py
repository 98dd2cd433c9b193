"""Images of strangers: servers of their own, served as they are."""
