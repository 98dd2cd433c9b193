"""ors-host: an Open Reward Standard server that gives every session a Docker container of its own.

The map, from the top down; a module imports only from those below it (``tests/test_layers.py``):

    cli            the command line, and ``serve``
    commands       the other commands, one module each
    options        flags made from the settings
    build          ``ors-host build``: an image from a folder
    check          the proof that an image answers
    trial          an image played through the protocol, and its guarantees looked at
    private        a host of one's own for a while
    cluster        more than one machine, with a map of its own
    serve          the life of the server: opens what is below in order, closes it in reverse
    preflight      what is looked at before it serves
    gauges         what the metrics look at while it does
    stopping       until it is told to stop
    listening      the port: taken, answered while the host starts, then by the application
    recovery       at the start: what an earlier host left is adopted or removed
    app            HTTP: the one place where an error becomes a response
    access_log     a line for each request, at level debug
    auth           API keys: who may ask for what
    dashboard      /ui: its files, and what they ask for
    overview       what the dashboard shows
    node_api       what the front of a cluster asks
    routes         a handler for each endpoint: parse, ask, answer
    parsing        requests → values
    streams        event streams to clients
    sessions       session id → Session
    timelines      what all sessions have done, for an hour after their end
    session        one session: its sandbox, its calls, its end
    origin         where a session comes from
    session_calls  its calls, each run to an outcome
    ending         why it ends, and what is told to those who still have to do with it
    attendance     how old it is, and how long nobody has asked it anything
    episode        what is said to its runtime, and what the answers mean
    connections    how many clients, and how long a silent one may stay
    catalog        which environments there are, and the questions that need no session
    catalog_container  one image's container that answers them
    history        the last hour in numbers
    recording      what was said in episodes: taken from the event loop, masked and kept by a thread
    transcripts    episodes as files
    pieces         what was said, in memory
    timeline       what one session has done, step by step
    masking        secrets are taken out of what is kept
    calls          one tool call: its outcome, kept for those who reconnect
    pool           where sessions' sandboxes come from: those that wait, started beforehand, or new ones
    demand         how many sessions are asked for at a time
    capacity       permission to have one more session
    sandbox        one container and its channel
    sandbox_spec   what its container is made from
    sandbox_channel  which channel it has, and how a server in it is reached
    autopsy        why a container ended, in words
    sandbox_host   what all sandboxes share, and the book of those that are alive
    rules          what holds for the containers of one image
    data           folders of this machine that environments read
    client         the protocol from a client's side
    samples        inputs made up from a tool's schema
    base_image     the image that environment images are built from
    diagnosis      what is fine on a machine and what isn't, and what to do about it
    machine        what this machine is like, as far as a host depends on it
    inventory      all hosts' containers on this engine, and which session each is for
    image_builder  Docker builds
    build_context  what of a folder is sent to the engine
    wheels         packages for builds without an index
    progress       long steps on a terminal
    disk           keeps containers from filling it
    kept_logs      what sessions' containers wrote, for a while after they are gone
    usage          what containers use of processors and memory
    egress         the way out of containers: a proxy on a unix socket
    proxy_request  what is asked of it
    network        its own way out: names to addresses, addresses to sockets
    tls_name       the server's name in the first message of TLS
    process_engine  an engine whose containers are processes, for ``ors-host dev``
    docker_engine  the Docker engine: what the host knows of its containers
    docker_calls   requests to Docker, each in a thread
    docker_events  what Docker tells of containers while they live
    docker_container  a container as Docker is told to make it
    engine         what a host needs of an engine: create, start, remove, list what is ours, tell of deaths
    docker_client  the one module that imports ``docker``
    placement      where this process's paths are on the engine's machine
    runtime_channel  requests and answers over the unix socket, matched by id
    server_channel  the same, asked of an image's own ORS server
    server_calls   its calls: each sent once
    server_session  its session: made, set up, and its prompt
    server_asking  questions to it, and its answers, checked
    server_dialect  what is asked of it, and what its answers mean
    server_note    what the next host must know of its session
    server_stream  its streams: bytes → events
    server_http    HTTP with a server that is not trusted
    server_connection  one connection to it
    server_reader  bytes → its answers
    netns          sockets inside a container's network
    doorstep       the socket that a runtime dials, and what guards it
    channel        what a sandbox needs of what stands behind it, and the words for its ends
    requests       the open ones of a channel, by id
    intake         what all channels share: memory for what comes in, and a process for what is heavy to read
    answers        what a runtime answers, checked
    state_view     a state directory seen from outside: whether a host lives there, and how it is reached
    state          the state directory: identity, lock, sockets
    metrics        what Prometheus is told
    event_loop     what a host runs in
    notify         tells systemd
    patience       work that is seen through although its caller was cancelled
    files          how much is in a directory tree
    cgroups        what the kernel counts for one container
    sse            events → bytes
    lifecycle      a session's states, as a table
    config         settings from flags, variables and a file; where each comes from
    settings       limits, times and paths
    egress_policy  what containers may reach by name, and which addresses are outside
    isolation      what each profile makes of a container
    kinds          what an image holds: our runtime, or a server of its own
    errors         what can go wrong, and what a client is told
    tracing        traces, where OpenTelemetry's variables ask for them
    logs           how log lines look
    priority       the host goes before containers, and dies no sooner
    memory         memory that was used once is given back
"""

from importlib.metadata import version

__version__ = version("ors-host")
