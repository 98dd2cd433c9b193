"""ors-host: an Open Reward Standard server that gives every session a Docker container of its own.

The map, from the top down; a module imports only from those below it (``tests/test_layers.py``):

    cli            commands and flags
    build, check   ``ors-host build``: an image from a folder, and the proof that it answers
    serve          the life of the server: opens what is below in order, closes it in reverse
    app, routes    HTTP: parse, ask, answer; the one place where an error becomes a response
    sessions       session id → Session
    session        one episode: its sandbox, its calls, its end
    catalog        which environments there are, and the questions that need no session
    calls          one tool call: its outcome, kept for those who reconnect
    capacity       permission to have one more session
    sandbox        one container and its channel
    base_image     the image that environment images are built from
    engine         Docker: create, start, remove, list what is ours, tell of deaths
    channel        requests and answers over the unix socket, matched by id
    state          the state directory: identity, lock, sockets
    models         the bodies of HTTP requests
    sse            events → bytes
    lifecycle      a session's states, as a table
    settings, errors, logs
"""

from importlib.metadata import version

__version__ = version("ors-host")
