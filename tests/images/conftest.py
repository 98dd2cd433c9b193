"""What the tests of this folder share: steps whose output can be read."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from host.progress import Steps


class RecordedSteps(Steps):
    """Steps on something that is no terminal, and what they have shown."""

    def __init__(self) -> None:
        self._output = io.StringIO()
        super().__init__(Console(file=self._output, highlight=False, width=400))

    @property
    def text(self) -> str:
        return self._output.getvalue()


@pytest.fixture
def steps() -> RecordedSteps:
    return RecordedSteps()
