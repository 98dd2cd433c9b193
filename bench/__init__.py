"""The benchmark: what isolation costs a trainer, measured side by side on one machine. ``python -m bench``, ``make bench``.

Compared are, in turn and in one run, so that what disturbs one disturbs the other:

ours         ors-host as an operator starts it, a process of its own
ors-sdk      the SDK's own server with the environment in its process: no isolation (``servers.py``)
the floor    docker-py alone: a container with the same options, to its first byte on a unix socket (``floor.py``)

    __main__      arguments, the run, the exit code
    rows/         what is measured, a file for each subject
    report        the results as table, file, and the README's table (which readme writes)
    peers/        other projects that run episodes in containers
    usage, crowd  what a host and its sessions use; many sessions at once
    ours, servers, floor, images
    episodes      what a trainer does: sessions and calls
    wire          HTTP as cheaply as Python can
    processes     memory and CPU time, from the kernel
    machine       what this machine is
    context, plan, table, numbers

Nothing here is part of the installed package.
"""
