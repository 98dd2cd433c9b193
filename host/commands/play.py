"""``ors-host play``: a person plays an episode in the terminal.

What is shown was written by an environment, perhaps a hostile one: nothing of it is passed on that a terminal would obey.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import click

from host.client import NotProtocol, Refused, Reply, Server, Session
from host.errors import StartupError
from host.logs import printable
from host.options import Command, json_option
from host.trial import text_of
from sandbox_runtime.messages import RunToolError, ToolSpec

_LEAVE = "quit"


@click.command("play", cls=Command, short_help="Play an episode by hand, on any server.")
@click.argument("url")
@click.option("-e", "--environment", metavar="NAME", help="The environment; the server's first by default.")
@click.option("-s", "--split", metavar="NAME", help="The split; the environment's first by default.")
@click.option("-i", "--index", type=int, default=0, show_default=True, metavar="N", help="Which task of the split.")
@click.option(
    "--api-key-file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="File with the key."
)
@click.option("--api-key", envvar="ORS_HOST_API_KEY", metavar="KEY", help="The key. [env: ORS_HOST_API_KEY]")
@json_option
def play_command(
    url: str,
    environment: str | None,
    split: str | None,
    index: int,
    api_key_file: Path | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Play an episode by hand on the server at URL, e.g. http://127.0.0.1:8080.

    You see the prompt and the tools, name a tool, are asked for its input, and see what it returns, until the episode is
    finished or you say quit. With --json what happened is printed as JSON at the end, and the rest goes to standard error.
    """
    if "://" not in url:
        url = f"http://{url}"
    try:
        key = api_key_file.read_text().strip() if api_key_file else api_key
        episode = anyio.run(_play, url, key, environment, split, index, as_json)
    except OSError as exc:
        raise StartupError(f"{api_key_file} can't be read: {exc.strerror}") from None
    except (Refused, NotProtocol) as exc:
        raise StartupError(str(exc)) from None
    if as_json:
        click.echo(json.dumps(episode, indent=2))


async def _play(
    url: str, key: str | None, environment: str | None, split: str | None, index: int, quiet: bool
) -> dict[str, Any]:
    async with Server.open(url, key) as server:
        environment = environment or (await server.environments())[0]
        split = split or (await server.splits(environment))[0].name
        task = await server.task(environment, split, index)
        session = await server.create(environment, task, {})
        try:
            calls = await _episode(session, f"{environment} · {split} · task {index}", quiet=quiet)
        finally:
            with anyio.CancelScope(shield=True):
                await session.delete()
    return {"environment": environment, "split": split, "index": index, "task": task, "calls": calls}


async def _episode(session: Session, title: str, *, quiet: bool) -> list[dict[str, Any]]:
    def say(text: str, **style: Any) -> None:
        click.secho(printable(text), err=quiet, **style)

    say(title, bold=True)
    say(text_of(await session.prompt()))
    tools = {tool.name: tool for tool in await session.tools()}
    for tool in tools.values():
        say(f"  {tool.name}({', '.join(_fields(tool))})  {' '.join((tool.description or '').split())}", dim=True)
    calls: list[dict[str, Any]] = []
    while True:
        try:
            words = await _asked(f"tool ({', '.join([*tools, _LEAVE])})", quiet)
            if words == _LEAVE:
                return calls
            if words not in tools:
                say(f"there is no tool {words!r}")
                continue
            tool_input: dict[str, Any] = {}
            for name, (schema, is_required) in _fields(tools[words]).items():
                await _fill(tool_input, name, schema, is_required=is_required, quiet=quiet)
        except click.Abort:  # Ctrl-D, Ctrl-C
            return calls
        reply = await session.call(words, tool_input)
        calls.append({"tool": words, "input": tool_input, "result": _result(reply)})
        match reply.output:
            case None:
                say(f"it raised: {reply.error}", fg="red")
            case RunToolError() as error:
                say(f"it was not run: {error.error}", fg="yellow")
            case success:
                say(text_of(success.output.blocks))
                if success.output.reward is not None:
                    say(f"reward {success.output.reward}", fg="cyan")
                if success.output.finished:
                    say("The episode is finished.", bold=True)
                    return calls


def _result(reply: Reply) -> Any:
    return {"error": reply.error} if reply.output is None else reply.output.model_dump(mode="json")


def _fields(tool: ToolSpec) -> Mapping[str, tuple[Mapping[str, Any], bool]]:
    """Return what a tool takes: name → schema, and whether it must be given."""
    schema = tool.input_schema or {}
    required: Sequence[str] = schema.get("required", ())
    return {name: (field, name in required) for name, field in (schema.get("properties") or {}).items()}


async def _fill(
    tool_input: dict[str, Any], name: str, schema: Mapping[str, Any], *, is_required: bool, quiet: bool
) -> None:
    """Ask for one field until it can be read; an empty line leaves out one that need not be given."""
    kind = str(schema.get("type", "JSON"))
    hint = "" if is_required else ", may be left out"
    while True:
        text = await _asked(f"  {name} ({kind}{hint})", quiet, default="")
        if not text and not is_required:
            return
        if kind == "string":
            # A line is a line; \\n in it is a new one, as in a shell's $'…'.
            tool_input[name] = text.replace("\\n", "\n")
            return
        try:
            tool_input[name] = json.loads(text)
            return
        except ValueError:
            click.echo(f"  that is no {kind}; as JSON, please, e.g. 3, true or [1, 2]", err=True)


async def _asked(question: str, quiet: bool, default: str | None = None) -> str:
    """Ask on the terminal. Raises click.Abort at the end of the input."""
    return str(
        await anyio.to_thread.run_sync(
            lambda: click.prompt(printable(question), default=default, show_default=False, err=quiet)
        )
    )
