"""The table of all differences that are meant. An answer that differs in any other way fails the suite.

``DIFFERENCES.md`` shows the table to people; the columns are the texts here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .replies import ABSENT, Delta, Exchange

ORS, OPENREWARD = "ors-sdk", "openreward"


@dataclass(frozen=True)
class Difference:
    """One difference on purpose.

    ``theirs`` says what an SDK's server does, for each SDK that ours differs from. ``covers`` tells whether one place in one
    exchange is this difference; it looks at both values, so that a new fault at the same place is not taken for it.
    """

    name: str
    theirs: Mapping[str, str]
    ours: str
    why: str
    covers: Callable[[Exchange, Delta], bool]


def both(words: str) -> dict[str, str]:
    """Return a cell that holds for both SDKs."""
    return {ORS: words, OPENREWARD: words}


# --- What the predicates are made of ---------------------------------------------------------------------------------


def statuses(theirs: int, ours: int) -> Callable[[Exchange, Delta], bool]:
    """Return a predicate: these two statuses, wherever the two answers then differ."""
    return lambda exchange, _: (exchange.theirs.status, exchange.ours.status) == (theirs, ours)


def at(exchange: Exchange, *topics: str, path: str = "") -> bool:
    """Tell whether an exchange belongs to one of these topics and ends with this path."""
    return exchange.request.topic in topics and exchange.request.path.endswith(path)


def data(delta: Delta, side: str, key: str) -> object:
    """Return a field of an event's data on one side of a difference."""
    value = getattr(delta, side)
    return value.get(key) if isinstance(value, dict) else None


def words(delta: Delta, place: str, theirs: str, ours: str) -> bool:
    """Tell whether a difference is one of words: at a place that ends so, texts that begin so."""
    return (
        delta.place.endswith(place)
        and isinstance(delta.theirs, str)
        and isinstance(delta.ours, str)
        and delta.theirs.startswith(theirs)
        and delta.ours.startswith(ours)
    )


def detail(exchange: Exchange) -> str:
    """Return the ``detail`` of our answer."""
    return str(exchange.ours.body.get("detail", "")) if isinstance(exchange.ours.body, dict) else ""


def events_of(exchange: Exchange, side: str) -> list[tuple[str, object]]:
    """Return the events of one side, without ``task_id``."""
    body = getattr(exchange, side).body
    found = body.get("events", []) if isinstance(body, dict) else []
    return [(event["event"], event["data"]) for event in found if event["event"] != "task_id"]


def _error_instead(exchange: Exchange, delta: Delta) -> bool:
    """Their stream ends with a result, or not at all; ours with an ``error`` event."""
    ours = events_of(exchange, "ours")
    return delta.place.startswith("body.") and [name for name, _ in ours] == ["error"] and ours[0][1] != ""


def _bare(exchange: Exchange, delta: Delta) -> bool:
    theirs = exchange.theirs
    return (
        theirs.status == 308
        and theirs.headers.get("Location") == f"/arithmetic{exchange.request.path}"
        and exchange.ours.status in (200, 404)
    )


BARE = ("/tools", "/splits", "/tasks", "/num_tasks", "/task", "/task_range", "/prompt", "/call")

TABLE: tuple[Difference, ...] = (
    Difference(
        "A word for machines in error bodies",
        both('`{"detail": …}`'),
        '`{"detail": …, "reason": …}`, the reason from the failure vocabulary',
        "What went wrong can be counted and acted on without reading prose.",
        lambda exchange, delta: (
            delta.place == "body.reason"
            and delta.theirs == ABSENT
            and isinstance(delta.ours, str)
            and exchange.ours.status >= 400
        ),
    ),
    Difference(
        "A body that does not validate",
        both("422, `detail` is a list"),
        "400, `detail` is a sentence that names the field and what was expected",
        "The documents say 400, and clients show `detail` to people.",
        lambda exchange, delta: (
            (exchange.theirs.status, exchange.ours.status) == (422, 400)
            and exchange.request.headers.get("X-Secrets") is None
            and (delta.place == "status" or (isinstance(delta.theirs, list) and len(detail(exchange)) > 10))
        ),
    ),
    Difference(
        "A very large body",
        both("read, however large"),
        "413 over 16 MiB (`--max-body`)",
        "One client must not fill the server's memory.",
        lambda exchange, delta: (
            at(exchange, "bad input to discovery", path="/tasks")
            and statuses(400, 413)(exchange, delta)
            and "16777216 bytes" in detail(exchange)
        ),
    ),
    Difference(
        "NaN in a body",
        both("500"),
        "400: it is not JSON",
        '5xx means "try again" to clients; this never gets better.',
        lambda exchange, delta: "NaN" in str(exchange.request.body) and statuses(500, 400)(exchange, delta),
    ),
    Difference(
        "The content type of a body",
        both("422 unless it is JSON"),
        "not looked at: the body is JSON or refused",
        "A client that forgets the header loses nothing.",
        lambda exchange, delta: (
            exchange.request.headers.get("Content-Type") == "text/plain" and statuses(422, 200)(exchange, delta)
        ),
    ),
    Difference(
        "Which environment one task is of",
        {ORS: "`/task` and `/task_range` leave `env_name` out"},
        "`env_name` is there, as from `/tasks`",
        "The newer client needs it.",
        lambda exchange, delta: (
            delta.place == "body.env_name"
            and delta.theirs == ABSENT
            and exchange.request.path.rpartition("/")[2] in ("task", "task_range")
        ),
    ),
    Difference(
        "`/get_task` and `/get_task_range`",
        both("404"),
        "the same as `/task` and `/task_range`",
        "A page of the documents calls them so.",
        lambda exchange, delta: "/get_task" in exchange.request.path and statuses(404, 200)(exchange, delta),
    ),
    Difference(
        "Bare paths",
        both("308 to the first environment's path"),
        "answered at once, for the session's environment, the one that `X-Deployment` names, or the first",
        "Several environments can be reached by a client that uses bare paths, and a POST is not sent twice.",
        lambda exchange, delta: exchange.request.path.partition("?")[0] in BARE and _bare(exchange, delta),
    ),
    Difference(
        "`X-Deployment`",
        both("ignored"),
        "chooses the environment on bare paths without a session",
        "It is how the newer client says which one it means.",
        lambda exchange, delta: (
            str(exchange.request.headers.get("X-Deployment")).lower() in ("workshop", "acme/workshop")
            and exchange.request.path == "/tools"
            and statuses(200, 200)(exchange, delta)
        ),
    ),
    Difference(
        "`/version`",
        {ORS: "308", OPENREWARD: "the SDK's version"},
        "ours",
        "It says what runs.",
        lambda exchange, delta: exchange.request.path == "/version" and exchange.ours.status == 200,
    ),
    Difference(
        "`/v1/environments/{owner}/{name}/required-secrets`",
        both("308: only that company's platform has it"),
        '`{"secrets": […]}`',
        "A harness asks for it, and gives up on a 404.",
        lambda exchange, delta: exchange.request.path.endswith("/required-secrets") and exchange.ours.status == 200,
    ),
    Difference(
        "HEAD",
        both("405, and `Allow` without it"),
        "answered wherever GET is",
        "Load balancers ask so; no client does.",
        lambda exchange, delta: (
            (exchange.request.method == "HEAD" and statuses(405, 200)(exchange, delta))
            or (delta.place == "headers.Allow" and delta.ours == f"{delta.theirs},HEAD")
        ),
    ),
    Difference(
        "Pages of the web framework",
        both("`/docs` and `/openapi.json` describe the routes"),
        "308, as for any other unknown first segment",
        "They are no part of the protocol.",
        lambda exchange, delta: exchange.request.path == "/docs" and statuses(200, 308)(exchange, delta),
    ),
    Difference(
        "Words: no such route",
        both("`Not Found`"),
        "which method and path there is not",
        "The path may have come about by a redirect.",
        lambda exchange, delta: (
            statuses(404, 404)(exchange, delta) and words(delta, "body.detail", "Not Found", "there is no ")
        ),
    ),
    Difference(
        "Words: no such environment",
        both("`unknown environment 'x'`"),
        "the same, followed by those that there are",
        "It shows the mistake.",
        lambda exchange, delta: (
            delta.place == "body.detail" and words(delta, "", "unknown environment", f"{delta.theirs}; there are: ")
        ),
    ),
    Difference(
        "Words: messages and scores that an environment has not",
        {ORS: "`Not Found`: it knows of neither", OPENREWARD: "`Environment 'x' does not implement score_group`"},
        "which of them `'x'` has not",
        "Our own words, with the same 404.",
        lambda exchange, delta: (
            exchange.request.path in ("/arithmetic/messages", "/arithmetic/score_group")
            and delta.place == "body.detail"
            and statuses(404, 404)(exchange, delta)
        ),
    ),
    Difference(
        "Words: no such toolset",
        {OPENREWARD: "`unknown toolset 'x'; valid options are …`"},
        "`no toolset 'x'; the installed openreward has …`",
        "Our own words, with the one that a harness looks for.",
        lambda exchange, delta: words(delta, "body.detail", "unknown toolset ", "no toolset "),
    ),
    Difference(
        "Words: a toolset that can't be used",
        {OPENREWARD: "what the toolset says"},
        "the same, after `the toolset can't be used here: ` and the exception's name",
        "It has the word that a harness looks for in any case.",
        lambda exchange, delta: (
            delta.place == "body.detail" and delta.ours == f"the toolset can't be used here: ValueError: {delta.theirs}"
        ),
    ),
    Difference(
        "`/create_session` of a client that does not ask for events",
        both("events"),
        '`{"sid": …}`; events if `Accept` names `text/event-stream`',
        "The documents answer with JSON; both clients ask for events.",
        lambda exchange, delta: (
            exchange.request.path == "/create_session"
            and exchange.request.headers.get("Accept") == "application/json"
            and isinstance(exchange.ours.body, dict)
            and len(exchange.ours.body.get("sid", "")) == 36
        ),
    ),
    Difference(
        "Session ids",
        both("any text"),
        "1 to 128 visible ASCII characters, else 400",
        "They appear in logs and labels.",
        lambda exchange, delta: (
            " " in exchange.request.headers.get("X-Session-ID", "").strip()
            and exchange.ours.status == 400
            and "visible ASCII" in detail(exchange)
        ),
    ),
    Difference(
        "A session that has ended",
        both("404, as if it had never been"),
        "410 with the reason, for an hour",
        "The documents say 410, the newer client takes it for the end of the session, and people learn why.",
        lambda exchange, delta: statuses(404, 410)(exchange, delta) and ": " in detail(exchange),
    ),
    Difference(
        "`/delete_session`",
        both("does nothing"),
        "ends the session if it still runs",
        "A client that only calls this one would leave a container behind.",
        lambda exchange, delta: (
            at(exchange, "one session after another under the same id", path="/ping")
            and statuses(200, 410)(exchange, delta)
            and detail(exchange).startswith("deleted: ")
        ),
    ),
    Difference(
        "Secrets in `X-Secrets`",
        {ORS: "ignored, though its own client sends them so"},
        "given to the environment; where body and header name the same one, the header's",
        "They would be lost.",
        lambda exchange, delta: (
            exchange.request.topic == "secrets header and body clash"
            and (exchange.theirs.status == 500 or words(delta, ".text", "from the body", "from the header"))
            and exchange.ours.status == 200
        ),
    ),
    Difference(
        "Secrets in the body",
        {OPENREWARD: "422"},
        "given to the environment",
        "The documents and the older SDK give them so.",
        lambda exchange, delta: (
            exchange.request.topic == "secrets header and body clash"
            and exchange.theirs.status in (404, 422)
            and exchange.ours.status == 200
        ),
    ),
    Difference(
        "An `X-Secrets` that can't be read",
        {OPENREWARD: "500"},
        "400, without a word of it in the answer or the log",
        '5xx means "try again" to clients.',
        lambda exchange, delta: (
            at(exchange, "a secrets header that is none", path="/create") and statuses(500, 400)(exchange, delta)
        ),
    ),
    Difference(
        "A constructor that raises",
        {ORS: "`/create` succeeds, later requests get 500", OPENREWARD: "500 from `/create`"},
        "422 `setup_failed` from `/create`, and the id stays free",
        'The error belongs to the request that caused it, and 5xx means "try again" to clients.',
        lambda exchange, delta: (
            at(exchange, "a constructor that raises")
            and (exchange.ours.status, exchange.theirs.status) in {(422, 200), (422, 500), (404, 500), (404, 200)}
        ),
    ),
    Difference(
        "A `setup()` that raises",
        both("500 on every later request; `/ping` is well"),
        "`teardown()` is called and the container removed; 410 `setup_failed`, and an `error` event from `/call`",
        "Clients retry a 500 for 15 s, and a call again and again.",
        lambda exchange, delta: (
            at(exchange, "a setup that raises")
            and (exchange.theirs.status, exchange.ours.status) in {(500, 410), (500, 200), (200, 410)}
            and "setup_failed: RuntimeError: the workshop is closed" in f"{exchange.ours.body}"
        ),
    ),
    Difference(
        "A `get_prompt()` that raises",
        both("500"),
        "422 `environment_failed`",
        '5xx means "try again" to clients, and a prompt may have side effects.',
        lambda exchange, delta: (
            at(exchange, "deleted during a call", path="/prompt") and statuses(500, 422)(exchange, delta)
        ),
    ),
    Difference(
        "A `setup()` that takes longer than 25 s",
        {OPENREWARD: "503 `starting` from `/prompt` and `/call` after 25 s"},
        "`/prompt` waits (up to 240 s, then that 503), `/call` waits with a comment every 10 s",
        "The older client gives up after three 503s, and a call that has its id is never run twice.",
        lambda exchange, delta: at(exchange, "a setup that takes long") and statuses(503, 200)(exchange, delta),
    ),
    Difference(
        "Creations of one id at once",
        {OPENREWARD: "all succeed, and one environment is forgotten"},
        "one 200, the rest 400",
        "An environment that nobody knows of would never be torn down.",
        lambda exchange, delta: at(exchange, "two creations at once") and statuses(200, 400)(exchange, delta),
    ),
    Difference(
        "Deleted during a call",
        both("the call runs on to its end"),
        "it is cancelled, and its stream ends with an `error` event",
        "After `/delete` has answered nothing of the session is left.",
        lambda exchange, delta: (
            at(exchange, "deleted during a call", path="/call")
            and _error_instead(exchange, delta)
            and str(events_of(exchange, "ours")[0][1]).startswith("deleted: ")
        ),
    ),
    Difference(
        "Why a tool was not run",
        {ORS: "`error` only"},
        "`reason` beside it: `not_found`, `input_validation`, `episode_finished`",
        "As the newer SDK does.",
        lambda exchange, delta: (
            delta.place.endswith(".data.reason") and delta.theirs == ABSENT and isinstance(delta.ours, str)
        ),
    ),
    Difference(
        "Words: the episode has finished",
        {OPENREWARD: "`… was not run: the episode has finished …`"},
        "the same beginning, a shorter end",
        "Our own words.",
        lambda exchange, delta: (
            delta.place.endswith(".data.error")
            and "was not run: the episode has finished" in str(delta.theirs)
            and "was not run: the episode has finished" in str(delta.ours)
        ),
    ),
    Difference(
        "Calls after the end of an episode",
        {ORS: "the tool runs"},
        "`ok: false`, `reason: episode_finished`",
        "The documents: no more tools should be called. As the newer SDK does.",
        lambda exchange, delta: (
            (delta.place.endswith(".data") or ".data." in delta.place)
            and any(
                isinstance(found, dict) and found.get("reason") == "episode_finished"
                for _, found in events_of(exchange, "ours")
            )
            and any(isinstance(found, dict) and found.get("ok") for _, found in events_of(exchange, "theirs"))
        ),
    ),
    Difference(
        "Calls at once",
        {ORS: "together"},
        "one at a time for each tool, unless it is marked `concurrent`",
        "Parallel calls can't race a grader or a counter of attempts. As the newer SDK does.",
        lambda exchange, delta: at(exchange, "calls at once") and words(delta, ".text", "2 at once", "1 at once"),
    ),
    Difference(
        "White space at the border of chunks",
        both("chunks begin wherever 4,096 characters end"),
        "no chunk after the first begins with white space",
        "Both clients strip it, and the result would arrive shorter than it was.",
        lambda exchange, delta: (
            delta.place.endswith(".clients lose characters") and delta.theirs is True and delta.ours == ABSENT
        ),
    ),
    Difference(
        "A reward that is no number, an output without blocks",
        both("NaN and infinity become null, no blocks are accepted"),
        "an `error` event that says so",
        "A lost reward must not look like none.",
        lambda exchange, delta: (
            (
                exchange.request.body["input"]["what"] in ("nan", "infinite", "no_blocks")
                if at(exchange, "tools that fail") and "what" in exchange.request.body["input"]
                else False
            )
            and _error_instead(exchange, delta)
        ),
    ),
    Difference(
        "A tool that raises `CancelledError`",
        both("the stream never ends"),
        "an `error` event; the session goes on",
        "A client would wait for ever.",
        lambda exchange, delta: (
            at(exchange, "tools that fail")
            and exchange.request.body["input"] == {"what": "cancelled"}
            and _error_instead(exchange, delta)
        ),
    ),
    Difference(
        "Reconnecting from another session",
        both("gives that call's result"),
        "`unknown task_id`",
        "Sessions know nothing of each other.",
        lambda exchange, delta: (
            at(exchange, "reconnection")
            and exchange.request.headers.get("X-Session-ID") == "<other>"
            and events_of(exchange, "ours") == [("error", "unknown task_id")]
        ),
    ),
    Difference(
        "A call under an id of the client's own",
        both("`unknown task_id`"),
        "runs under that id, once",
        "The documents use it to trace calls.",
        lambda exchange, delta: (
            at(exchange, "reconnection")
            and exchange.request.body.get("task_id") == "trace-123"
            and [name for name, _ in events_of(exchange, "ours")] == ["end"]
        ),
    ),
    Difference(
        "A tool that raises without words",
        both("an empty `error` event"),
        "the exception's name",
        "Clients say `Unknown SSE error` for an empty one.",
        lambda exchange, delta: (
            at(exchange, "tools that fail")
            and exchange.request.body["input"] == {"what": "empty"}
            and (delta.theirs, delta.ours) == ("", "RuntimeError")
        ),
    ),
)
