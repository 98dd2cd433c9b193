"""From a request's method and params to the value that answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import CoreSchema, SchemaValidator
from pydantic_core import core_schema as cs

from . import dialects, discovery
from .data_types import complete_models
from .episode import Episode
from .faults import RequestFault
from .messages import Fault, Method, describe
from .output import shorten
from .served import ServedClass

Params = Mapping[str, Any]


def _params(**members: CoreSchema) -> SchemaValidator:
    """Return the check of a request's params: an object with these members, of which those with a default may be left out."""
    fields = {
        name: cs.typed_dict_field(schema, required=schema["type"] != "default") for name, schema in members.items()
    }
    return SchemaValidator(cs.typed_dict_schema(fields, extra_behavior="forbid"))


def _or_none(schema: CoreSchema) -> CoreSchema:
    return cs.with_default_schema(cs.nullable_schema(schema), default=None)


_STR, _INT = cs.str_schema(strict=True), cs.int_schema(strict=True)
_OBJECT = cs.dict_schema(keys_schema=_STR, strict=True)
_SECRETS = cs.with_default_schema(cs.dict_schema(_STR, _STR, strict=True), default_factory=dict)
_NOTHING = _params()
_OF_CLASS = _params(env=_STR)
_OF_SPLIT = _params(env=_STR, split=_STR)
_OF_TASK = _params(env=_STR, split=_STR, index=_INT)
_OF_RANGE = _params(env=_STR, split=_STR, start=_or_none(_INT), stop=_or_none(_INT))
_CREATE = _params(env=_STR, task_spec=_OBJECT, secrets=_SECRETS, toolset_name=_or_none(_STR))
_CALL = _params(call_id=_STR, name=_STR, input=_OBJECT)
_SCORE_GROUP = _params(call_id=_STR, candidates=cs.list_schema(_OBJECT, strict=True))


class Adapter:
    """Answers requests about some environment classes, and plays one episode of one of them."""

    def __init__(self, environments: Sequence[type]) -> None:
        self._environments = {env.name.lower(): env for env in map(dialects.serve, environments)}
        self._create_asked = False
        self._teardown_asked = False
        self._created: Episode | None = None
        self._handlers: dict[str, tuple[SchemaValidator, Callable[[Params], Awaitable[Any]]]] = {
            Method.LIST_TOOLS: (_OF_CLASS, lambda p: self._class(p).list_tools()),
            Method.LIST_SPLITS: (_OF_CLASS, lambda p: discovery.list_splits(self._class(p))),
            Method.LIST_TASKS: (_OF_SPLIT, lambda p: discovery.list_tasks(self._class(p), p["split"])),
            Method.NUM_TASKS: (_OF_SPLIT, lambda p: discovery.num_tasks(self._class(p), p["split"])),
            Method.GET_TASK: (_OF_TASK, lambda p: discovery.get_task(self._class(p), p["split"], p["index"])),
            Method.GET_TASK_RANGE: (
                _OF_RANGE,
                lambda p: discovery.get_task_range(self._class(p), p["split"], p["start"], p["stop"]),
            ),
            Method.CREATE: (_CREATE, self._create),
            Method.SETUP: (_NOTHING, lambda p: self._episode.env.setup()),
            Method.PROMPT: (_NOTHING, lambda p: self._episode.env.prompt()),
            Method.MESSAGES: (_NOTHING, lambda p: self._episode.env.messages()),
            Method.TASK_TOOLS: (_NOTHING, lambda p: self._episode.env.task_tools()),
            Method.CALL: (_CALL, lambda p: self._episode.call(p["name"], p["input"])),
            Method.SCORE_GROUP: (_SCORE_GROUP, lambda p: self._episode.env.score_group(p["candidates"])),
            Method.TEARDOWN: (_NOTHING, lambda p: self._teardown()),
        }

    async def answer(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the result of a request: models, or what JSON has.

        Raises:
            RequestFault: there is none.
            asyncio.CancelledError: the request was cancelled, and what it started has ended.
        """
        if method not in self._handlers:
            raise _bad_request(f"unknown method {method!r}")
        check, handler = self._handlers[method]
        try:
            checked = check.validate_python(params)
        except ValidationError as exc:
            raise _bad_request(f"{method}: {describe(exc)}") from exc
        return await handler(checked)

    @property
    def playing(self) -> str | None:
        """The environment of the episode, from its construction to its teardown."""
        return None if self._created is None or self._teardown_asked else self._created.name

    @property
    def names(self) -> list[str]:
        """The environments, in the order given."""
        return [env.name for env in self._environments.values()]

    def _class(self, params: Params) -> ServedClass:
        try:
            return self._environments[params["env"].lower()]
        except KeyError:
            known = ", ".join(self.names)
            raise _bad_request(f"no environment {params['env']!r} here; there is {known}") from None

    async def _create(self, params: Params) -> None:
        env = self._class(params)
        if self._create_asked:
            raise _bad_request("create was asked for before; a runtime serves one episode")
        self._create_asked = True
        complete_models()
        self._created = await Episode.create(env, params["task_spec"], params["secrets"], params["toolset_name"])

    async def _teardown(self) -> None:
        episode = self._episode
        self._teardown_asked = True
        await episode.env.teardown()

    @property
    def _episode(self) -> Episode:
        if self._created is None:
            raise _bad_request("there is no episode: create comes first")
        if self._teardown_asked:
            raise _bad_request("the episode has been torn down")
        return self._created


def _bad_request(message: str) -> RequestFault:
    return RequestFault(Fault.BAD_REQUEST, shorten(message))
