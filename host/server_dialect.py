"""What is asked of somebody else's ORS server, and what its answers mean, as the documents and both public SDKs have it. Pure.

The answers are checked as a runtime's are, with one indulgence: a field that we don't know is left out, not refused, for nobody
promised us that there is none.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from pydantic_core import from_json, to_json

from host.answers import MAX_VALUES, CheckedJSON, InvalidAnswer, Verdict, checked_json, has_more_values
from sandbox_runtime.messages import Fault, Method, Split

MAX_DETAIL_CHARS = 2000
_MAX_SECRETS_HEADER = 16 * 1024
"""Servers refuse longer headers; then the secrets are in the body only."""

RECONNECTING = "ors-host.reconnect"
"""The name of no tool: a server that knows the call answers with its result, and one that doesn't can't run anything."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_MAX_NAMES = 1000

_SURROGATES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""An escaped backslash, a whole pair, or half of one."""

_FIELDS: Mapping[Method, str] = {
    Method.LIST_TASKS: "tasks",
    Method.NUM_TASKS: "num_tasks",
    Method.GET_TASK: "task",
    Method.GET_TASK_RANGE: "tasks",
}
"""In which field of an answer the value is."""

_SIMPLE: Mapping[Method, tuple[str, str]] = {
    Method.LIST_TOOLS: ("GET", "tools"),
    Method.LIST_SPLITS: ("GET", "splits"),
    Method.LIST_TASKS: ("POST", "tasks"),
    Method.NUM_TASKS: ("POST", "num_tasks"),
    Method.GET_TASK: ("POST", "task"),
    Method.GET_TASK_RANGE: ("POST", "task_range"),
    Method.PROMPT: ("GET", "prompt"),
    Method.MESSAGES: ("GET", "messages"),
    Method.TASK_TOOLS: ("GET", "task_tools"),
    Method.CALL: ("POST", "call"),
    Method.SCORE_GROUP: ("POST", "score_group"),
}

DISCOVERY = frozenset(
    {
        Method.LIST_TOOLS,
        Method.LIST_SPLITS,
        Method.LIST_TASKS,
        Method.NUM_TASKS,
        Method.GET_TASK,
        Method.GET_TASK_RANGE,
    }
)
"""What is asked of no session, and may be asked again."""


@dataclass(frozen=True)
class Question:
    """One HTTP request."""

    verb: str
    path: str
    body: bytes | None = None


def question(method: Method, env: str, params: Mapping[str, Any]) -> Question:
    """Return how a server is asked about one of its environments.

    Raises:
        ValueError: the parameters have no JSON form.
    """
    verb, path = _asked_at(method, env)
    return Question(verb, path, to_json(params, inf_nan_mode="null") if verb == "POST" else None)


@lru_cache(maxsize=256)
def _asked_at(method: Method, env: str) -> tuple[str, str]:
    verb, name = _SIMPLE[method]
    return verb, f"/{quote(env, safe='')}/{name}"


def reconnection(method: Method, env: str, task_id: str) -> Question:
    """Return how a call that the server has named is asked for again."""
    params = {"candidates": []} if method is Method.SCORE_GROUP else {"name": RECONNECTING, "input": {}}
    return question(method, env, {**params, "task_id": task_id})


def creation(params: Mapping[str, Any], *, with_secrets: bool) -> tuple[bytes, dict[str, str]]:
    """Return the body of ``/create`` and the headers that go with it.

    The documents and the older SDK have secrets in the body, the newer SDK has them in a header and refuses such a body.
    """
    body: dict[str, Any] = {"env_name": params["env"], "task_spec": params["task_spec"]}
    headers: dict[str, str] = {}
    secrets = params["secrets"]
    if params.get("toolset_name") is not None:
        body["toolset_name"] = params["toolset_name"]
    if secrets:
        packed = base64.b64encode(json.dumps({name: {"value": value} for name, value in secrets.items()}).encode())
        if len(packed) <= _MAX_SECRETS_HEADER:
            headers["X-Secrets"] = packed.decode()
        if with_secrets:
            body["secrets"] = dict(secrets)
    return to_json(body, inf_nan_mode="null"), headers


def session_id(body: bytes | bytearray) -> str:
    """Return the id in the JSON answer to ``/create_session``.

    Raises:
        InvalidAnswer: there is none that could go into a header.
    """
    try:
        return checked_session_id(from_json(bytes(body))["sid"])
    except (ValueError, KeyError, TypeError, IndexError):
        return checked_session_id(None)


def checked_session_id(sid: object) -> str:
    """Return a server's session id.

    Raises:
        InvalidAnswer: it could not go into a header.
    """
    if not isinstance(sid, str) or not re.fullmatch(r"[!-~]{1,128}", sid):
        raise InvalidAnswer("the answer to /create_session has no session id of 1 to 128 visible ASCII characters")
    return sid


def is_object(body: bytes | bytearray) -> bool:
    """Tell whether a body is a JSON object."""
    try:
        return isinstance(from_json(bytes(body)), dict)
    except ValueError:
        return False


def environment_names(body: bytes | bytearray) -> tuple[str, ...]:
    """Return the answer to ``/list_environments``.

    Raises:
        InvalidAnswer: it isn't a list of names that can be parts of paths.
    """
    try:
        names = from_json(bytes(body))
    except ValueError:
        names = None
    if not isinstance(names, list) or len(names) > _MAX_NAMES or not all(isinstance(name, str) for name in names):
        raise InvalidAnswer("the answer to /list_environments is no list of names")
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidAnswer(
                f"an environment is named {name[:100]!r}: letters, digits, '_', '-' and '.' make a name"
            )
    return tuple(names)


def answer(method: Method, body: bytes | bytearray) -> bytes:
    """Return the value in the body of an answer, as JSON.

    Raises:
        InvalidAnswer: it isn't what the method promises.
    """
    value = _parsed(bytes(body))
    field = _FIELDS.get(method)
    if field is not None and isinstance(value, dict) and field in value:
        value = value[field]
    if method is Method.LIST_SPLITS and isinstance(value, list):
        value = [_split(split) for split in value]
    if method in (Method.LIST_TOOLS, Method.TASK_TOOLS) and isinstance(value, dict):
        value = _tools(value)
    refused = method in (Method.CALL, Method.RESULT) and isinstance(value, dict) and value.get("ok") is False
    # A refusal has a reason in one SDK's words alone: null, where there is none, would be ours.
    return checked_json(method, value, ignore_extra=True, exclude_none=refused)


def check(body: bytes, method: Method) -> Verdict:
    """Do what ``answer`` does, in the reading process, for a body that is heavy to read."""
    if has_more_values(body, MAX_VALUES):
        return Verdict(0, invalid=f"more than {MAX_VALUES} values")
    try:
        return Verdict(0, CheckedJSON(answer(method, body)))
    except InvalidAnswer as exc:
        return Verdict(0, invalid=str(exc))


def fault_of(method: Method, status: int, detail: str) -> Fault:
    """Return what an answer that is not 200 means."""
    words = detail.lower()
    if method in DISCOVERY and status in (400, 404, 405, 422, 501):
        if "index" in words and "not supported" not in words:
            return Fault.INVALID_INDEX
        if "split" in words:
            return Fault.INVALID_SPLIT
        return Fault.NOT_SUPPORTED
    if method in (Method.MESSAGES, Method.SCORE_GROUP) and status in (404, 405):
        return Fault.NOT_SUPPORTED
    if method is Method.CREATE and status in (400, 422) and "toolset" in words:
        return Fault.INVALID_TOOLSET
    return Fault.ENVIRONMENT_RAISED


def detail_of(body: bytes | bytearray, content_type: str) -> str:
    """Return in words what the body of an error says; nothing, if that is for browsers."""
    text = bytes(body).decode(errors="replace").strip()
    if content_type == "application/json":
        try:
            value = from_json(bytes(body))
        except ValueError:
            return ""
        if isinstance(value, dict):
            value = value.get("detail", value.get("error", value.get("message", value)))
        text = value if isinstance(value, str) else json.dumps(value)
    elif content_type not in ("", "text/plain"):
        return ""
    return text[:MAX_DETAIL_CHARS]


def _parsed(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as exc:
        # Half a character, as JavaScript writes it, is JSON to many; what it stood for is lost already.
        if (mended := _SURROGATES.sub(_mend, body)) != body:
            return _parsed(mended)
        raise InvalidAnswer(f"not JSON: {exc}") from None


def _mend(found: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if found[1] else found[0]


def _split(split: Any) -> Any:
    if isinstance(split, dict) and isinstance(split.get("name"), str) and "type" not in split:
        return Split.of(split["name"])
    return Split.of(split) if isinstance(split, str) else split


def _tools(value: Mapping[str, Any]) -> dict[str, Any]:
    tools = value.get("tools")
    if not isinstance(tools, list):
        return dict(value)
    defaults = {"description": "", "input_schema": None}
    return {**value, "tools": [{**defaults, **tool} if isinstance(tool, dict) else tool for tool in tools]}
