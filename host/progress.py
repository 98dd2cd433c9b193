"""Steps of a long command, with the time each takes: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Detail = Callable[[str], None]
"""Tells what a step is doing just now, in one line."""


_DETAIL_CHARS = 100


class Steps:
    """Where a command says what it does; standard error by default, so that output stays output."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)

    @contextmanager
    def step(self, title: str) -> Iterator[Detail]:
        """Show a step until the block is left, then one line with its time; the block is given ``Detail``."""
        started = time.monotonic()
        done = "[red]failed[/]"
        try:
            with self._live(title) as detail:
                yield detail
            done = "[green]done[/]"
        finally:
            self._console.print(f"{escape(title)}: {done} [dim]({time.monotonic() - started:.1f} s)[/]", soft_wrap=True)

    def say(self, text: str) -> None:
        """Show one line."""
        self._console.print(escape(text), soft_wrap=True)

    @contextmanager
    def _live(self, title: str) -> Iterator[Detail]:
        if not self._console.is_terminal:
            self.say(f"{title} …")
            yield lambda text: self.say(f"  {_short(text)}")
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[detail]}"),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            task = progress.add_task(escape(title), total=None, detail="")
            yield lambda text: progress.update(task, detail=escape(_short(text)))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _DETAIL_CHARS else line[: _DETAIL_CHARS - 1] + "…"
