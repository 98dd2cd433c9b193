"""What a host is deployed with: a wheel, a unit of systemd, a container, Prometheus and Grafana."""
