"""More than one machine: hosts on a real Ray cluster, whose nodes are all on this one."""
