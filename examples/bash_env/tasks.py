"""The tasks: what the agent finds in its work directory, what it is asked to do, and how the result must look.

All paths are relative to the work directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Task:
    """One job on files."""

    instruction: str
    files: Mapping[str, str]
    """What there is at the start: path → text."""
    expected: Mapping[str, str]
    """Files that must be there at the end: path → text. White space at the end of the text doesn't count."""
    absent: tuple[str, ...] = ()
    """Paths at which there must be nothing at the end."""
    modes: Mapping[str, int] = field(default_factory=dict)
    """Permissions that must be set at the end: path → mode bits."""
    archives: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """tar.gz files that must be there at the end, and the files in them: path → (name → text)."""


_DATED_LOGS = {
    f"logs/app-{day}.log": f"{day} service started\n{day} {count} requests served\n"
    for day, count in {
        "2021-03-04": 120,
        "2021-11-30": 87,
        "2022-01-01": 5,
        "2022-06-17": 301,
        "2022-12-31": 44,
        "2023-08-09": 268,
    }.items()
}
_NOT_A_LOG = {"logs/README.txt": "Logs of the service, one file a day.\n"}

_ERRORS = {"auth": 3, "billing": 0, "mail": 7, "search": 5}
_SERVICE_LOGS = {
    f"logs/{service}.log": "INFO started\n"
    + "".join(f"ERROR request {number} failed\nINFO retried\n" for number in range(count))
    + "WARN the last ERRORS page was slow\nINFO stopped\n"
    for service, count in _ERRORS.items()
}

_PHOTOS = {
    "photos/Beach Day 01.JPG": "beach one\n",
    "photos/Beach Day 02.JPG": "beach two\n",
    "photos/Grandma.JPG": "grandma\n",
    "photos/the cat.JPG": "cat\n",
}

_DATA = {
    "data/a/one.bin": "1" * 900,
    "data/a/deep/er/two.bin": "2" * 4_000,
    "data/b/three.bin": "3" * 3_999,
    "data/four.bin": "4" * 12,
    "data/b/with space.bin": "5" * 5_001,
}

_SCRIPTS = {f"scripts/{name}.sh": f"#!/bin/sh\necho {name}\n" for name in ("build", "deploy", "test")}
_KEYS = {f"keys/{name}.pem": f"not really a key of {name}\n" for name in ("alice", "bob")}

_NOTES = {
    "notes/monday.md": "# Monday\nWater the plants.\n",
    "notes/work/plan.md": "# Plan\n1. Think\n2. Write\n",
    "notes/work/ideas.md": "# Ideas\n",
}
_CLUTTER = {"notes/monday.md.tmp": "half a sentence", "notes/work/cache.bin": "0" * 300}

_SALES = {
    "sales.csv": "date,customer,amount\n"
    "2024-01-03,Zoe,120\n2024-01-03,Ben,35\n2024-01-04,Ann,60\n2024-01-05,Ben,15\n2024-01-09,Zoe,5\n2024-01-09,Ben,200\n"
}

_INBOX = {
    "inbox/a.txt": "invoice 17\n",
    "inbox/b.txt": "invoice 18\n",
    "inbox/c.txt": "invoice 17\n",
    "inbox/d.txt": "invoice 17 \n",
    "inbox/e.txt": "invoice 18\n",
}

TASKS: dict[str, dict[str, Task]] = {
    "train": {
        "logs-by-year": Task(
            "The folder `logs` holds one log a day, named `app-YYYY-MM-DD.log`. Move each log into a folder named after its "
            "year inside `logs`, for example `logs/2021/app-2021-03-04.log`. Leave everything else as it is.",
            files=_DATED_LOGS | _NOT_A_LOG,
            expected={f"logs/{path[9:13]}/{path[5:]}": text for path, text in _DATED_LOGS.items()} | _NOT_A_LOG,
            absent=tuple(_DATED_LOGS),
        ),
        "count-errors": Task(
            "For each file in `logs`, count the lines that start with the word ERROR. Write the file `report.txt` with one "
            "line for each service, `name count` (for example `auth 12`), the highest count first. The name is the file's "
            "name without `.log`. List services without errors too, and leave the logs as they are.",
            files=_SERVICE_LOGS,
            expected=_SERVICE_LOGS | {"report.txt": "mail 7\nsearch 5\nauth 3\nbilling 0\n"},
        ),
        "rename-photos": Task(
            "Rename the files in `photos`: everything in lower case, and an underscore for each space. `My Dog.JPG` would "
            "become `my_dog.jpg`.",
            files=_PHOTOS,
            expected={path.lower().replace(" ", "_"): text for path, text in _PHOTOS.items()},
            absent=tuple(_PHOTOS),
        ),
        "largest-file": Task(
            "Find the largest file anywhere below `data` and write its path, starting with `data/`, into `largest.txt`. "
            "Don't change the data.",
            files=_DATA,
            expected=_DATA | {"largest.txt": "data/b/with space.bin\n"},
        ),
        "permissions": Task(
            "Set the permissions of the files: every script in `scripts` may be read and run by everyone and written by its "
            "owner only (755); every file in `keys` may be read and written by its owner and by no one else (600).",
            files=_SCRIPTS | _KEYS,
            expected=_SCRIPTS | _KEYS,
            modes=dict.fromkeys(_SCRIPTS, 0o755) | dict.fromkeys(_KEYS, 0o600),
        ),
    },
    "test": {
        "archive-notes": Task(
            "Build `notes.tar.gz`, a gzipped tar archive of all `.md` files below `notes`, with their paths as they are seen "
            "from here (for example `notes/work/plan.md`). Nothing else may be in it. Keep the folder as it is.",
            files=_NOTES | _CLUTTER,
            expected=_NOTES | _CLUTTER,
            archives={"notes.tar.gz": _NOTES},
        ),
        "sum-sales": Task(
            "`sales.csv` has the columns date, customer and amount. Write `totals.csv` with the header `customer,total` and "
            "one line for each customer with the sum of the amounts, in alphabetical order of the customers.",
            files=_SALES,
            expected=_SALES | {"totals.csv": "customer,total\nAnn,60\nBen,250\nZoe,125\n"},
        ),
        "delete-duplicates": Task(
            "Some files in `inbox` have exactly the same content as another. Of each group of equal files keep the one whose "
            "name comes first in the alphabet and delete the others.",
            files=_INBOX,
            expected={path: _INBOX[path] for path in ("inbox/a.txt", "inbox/b.txt", "inbox/d.txt")},
            absent=("inbox/c.txt", "inbox/e.txt"),
        ),
    },
}
