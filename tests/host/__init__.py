"""The host, on fakes of the engine and the runtime."""
