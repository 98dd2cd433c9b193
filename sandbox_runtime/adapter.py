"""From a request's method and params to the value that answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from . import dialects, discovery
from .data_types import complete_models
from .episode import Episode
from .faults import RequestFault
from .messages import Fault, Method, describe
from .output import shorten
from .served import ServedClass


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class _OfClass(_Params):
    env: str


class _OfSplit(_OfClass):
    split: str


class _OfTask(_OfSplit):
    index: int


class _OfRange(_OfSplit):
    start: int | None = None
    stop: int | None = None


class _Create(_OfClass):
    task_spec: dict[str, Any]
    secrets: dict[str, str] = Field(default_factory=dict, repr=False)
    toolset_name: str | None = None


class _Call(_Params):
    call_id: str
    name: str
    input: dict[str, Any]


class _ScoreGroup(_Params):
    call_id: str
    candidates: list[dict[str, Any]]


class Adapter:
    """Answers requests about some environment classes, and plays one episode of one of them."""

    def __init__(self, environments: Sequence[type]) -> None:
        self._environments = {env.name.lower(): env for env in map(dialects.serve, environments)}
        self._create_asked = False
        self._teardown_asked = False
        self._created: Episode | None = None
        self._handlers: dict[str, tuple[type[_Params], Callable[[Any], Awaitable[Any]]]] = {
            Method.LIST_TOOLS: (_OfClass, lambda p: self._class(p).list_tools()),
            Method.LIST_SPLITS: (_OfClass, lambda p: discovery.list_splits(self._class(p))),
            Method.LIST_TASKS: (_OfSplit, lambda p: discovery.list_tasks(self._class(p), p.split)),
            Method.NUM_TASKS: (_OfSplit, lambda p: discovery.num_tasks(self._class(p), p.split)),
            Method.GET_TASK: (_OfTask, lambda p: discovery.get_task(self._class(p), p.split, p.index)),
            Method.GET_TASK_RANGE: (
                _OfRange,
                lambda p: discovery.get_task_range(self._class(p), p.split, p.start, p.stop),
            ),
            Method.CREATE: (_Create, self._create),
            Method.SETUP: (_Params, lambda p: self._episode.env.setup()),
            Method.PROMPT: (_Params, lambda p: self._episode.env.prompt()),
            Method.MESSAGES: (_Params, lambda p: self._episode.env.messages()),
            Method.TASK_TOOLS: (_Params, lambda p: self._episode.env.task_tools()),
            Method.CALL: (_Call, lambda p: self._episode.call(p.name, p.input)),
            Method.SCORE_GROUP: (_ScoreGroup, lambda p: self._episode.env.score_group(p.candidates)),
            Method.TEARDOWN: (_Params, lambda p: self._teardown()),
        }

    async def answer(self, method: str, params: Mapping[str, Any]) -> Any:
        """Return the result of a request: models, or what JSON has.

        Raises:
            RequestFault: there is none.
            asyncio.CancelledError: the request was cancelled, and what it started has ended.
        """
        if method not in self._handlers:
            raise _bad_request(f"unknown method {method!r}")
        model, handler = self._handlers[method]
        try:
            checked = model.model_validate(params)
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

    def _class(self, params: _OfClass) -> ServedClass:
        try:
            return self._environments[params.env.lower()]
        except KeyError:
            known = ", ".join(self.names)
            raise _bad_request(f"no environment {params.env!r} here; there is {known}") from None

    async def _create(self, params: _Create) -> None:
        env = self._class(params)
        if self._create_asked:
            raise _bad_request("create was asked for before; a runtime serves one episode")
        self._create_asked = True
        complete_models()
        self._created = await Episode.create(env, params.task_spec, params.secrets, params.toolset_name)

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
