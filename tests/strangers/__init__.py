"""Images of strangers: servers of their own, in other languages, of the SDKs, and hostile ones, served as they are."""
