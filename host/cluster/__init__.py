"""More than one machine: a front in front of the nodes of a Ray cluster, each of which runs an ordinary ``ors-host``.

The map, from the top down; a module imports only from those below it (``tests/test_layers.py``):

    front          the life of a front
    overview       what ``ors-host nodes`` shows
    ray_cluster    the one module that imports ``ray``: reservations, nodes, agents
    agent          keeps one node's host running, and gives back its sessions' places
    node_host      that host's process
    images         images that aren't on a node's engine are pulled
    routes         a handler for each endpoint: which node is meant?
    router         requests to nodes and their answers, streamed through
    directory      session id → node, environment → image
    reconcile      what fell apart is put together: places without sessions, sessions without places
    reservations   a place for a session, waited for within bounds
    membership     the nodes, and which sessions each has
    node           one node
    agent_status   what an agent says of itself, and whether it fits
    knock          does anything listen there?
    errors         what is told here and not on one machine
    node_settings  what of the front's settings nodes get
    names          what Ray and the rest have in common
"""
