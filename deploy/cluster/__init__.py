"""More than one machine: a cluster to try it on, and what stands in front of several hosts."""
