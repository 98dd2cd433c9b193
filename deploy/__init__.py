"""What a host is deployed with: see docs/how-to/deploy.md and docs/how-to/container.md."""
