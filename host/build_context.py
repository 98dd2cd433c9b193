"""What is sent to the engine for a build: a folder as a tar archive, less what its ``.dockerignore`` leaves out."""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from host.docker_client import exclude_paths

IGNORED_BY_DEFAULT = ("**/__pycache__", "**/*.pyc", ".git", ".venv", "venv")
"""For a folder that says nothing about builds itself: neither a Dockerfile nor a ``.dockerignore`` in it."""

Folders = Mapping[str, tuple[Path, list[str]]]
"""Place in a context ("" is its top) → a folder, and the patterns of what to leave out."""


def ignore_patterns(folder: Path) -> list[str] | None:
    """Return the patterns of a folder's ``.dockerignore``, or None if it has none."""
    file = folder / ".dockerignore"
    if not file.is_file():
        return None
    lines = (line.strip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def context_files(folder: Path, patterns: list[str]) -> list[str]:
    """Return the paths in a folder, relative to it and sorted, that no pattern (``.dockerignore`` rules) leaves out.

    A Dockerfile at the top always stays: the engine needs it.
    """
    return sorted(path for path in exclude_paths(str(folder), patterns) if path not in ("", "."))


@contextmanager
def open_context(folders: Folders, files: Mapping[str, str]) -> Iterator[IO[bytes]]:
    """Open a context in a temporary file, gone when the block is left.

    Args:
        folders: what is copied from this machine.
        files: place in the context → text of a file that exists nowhere else.

    Raises:
        OSError: something in a folder can't be read.
    """
    with tempfile.TemporaryFile() as archive_file:
        with tarfile.open(fileobj=archive_file, mode="w") as archive:
            for place, (folder, patterns) in folders.items():
                for path in context_files(folder, patterns):
                    archive.add(folder / path, str(Path(place, path)), recursive=False, filter=_entry)
            for place, text in files.items():
                content = text.encode()
                entry = tarfile.TarInfo(place)
                entry.size = len(content)
                entry.mode = 0o644
                archive.addfile(entry, io.BytesIO(content))
        archive_file.seek(0)
        yield archive_file


def _entry(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Make an entry root's, whoever owns the file here; leave out what is no file, folder or link."""
    if not (entry.isfile() or entry.isdir() or entry.issym() or entry.islnk()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
