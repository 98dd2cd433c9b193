"""The servers that are compared: an SDK's own, on the author's file as it is, and ours with an image of the same folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from host.build import build_environment
from tests.docker.harness import free_port

ENVIRONMENTS = Path(__file__).parent / "environments"
DIALECTS = ("ors-sdk", "openreward")

IMAGES = {
    "ors-sdk": "ors-host-test-shapes:ors-sdk",
    "openreward": "ors-host-test-shapes:openreward",
    "tutor": "ors-host-test-tutor:latest",
    "games": "ors-host-test-games:latest",
}

_START_TIMEOUT_S = 60
_LAUNCH = """
import functools, runpy, sys
module, file, port = sys.argv[1:]
Server = __import__(module, fromlist=["Server"]).Server
Server.run = functools.partialmethod(Server.run, host="127.0.0.1")
run = Server.run
Server.run = lambda self, **given: run.__get__(self)(port=int(port))
runpy.run_path(file, run_name="__main__")
"""


@contextmanager
def folders() -> Iterator[dict[str, Path]]:
    """The environments' folders by name.

    ``shapes`` is written for ors-sdk. Moving such a file to openreward takes one line, the import; that is done here.
    """
    with tempfile.TemporaryDirectory(prefix="ors-host-") as scratch:
        moved = Path(scratch) / "openreward"
        shutil.copytree(ENVIRONMENTS / "shapes", moved)
        file = moved / "server.py"
        before = file.read_text()
        after = before.replace("\nfrom ors import ", "\nfrom openreward.environments import ", 1)
        assert after != before
        file.write_text(after)
        shutil.copy(ENVIRONMENTS / "tutor" / "requirements.txt", moved)
        tutor = Path(scratch) / "tutor"
        shutil.copytree(ENVIRONMENTS / "tutor", tutor)
        # The same requirements: an image that has them already spares the suite half a minute.
        (tutor / "Dockerfile").write_text(f'FROM {IMAGES["openreward"]}\nCOPY . /opt/env/\nCMD ["server"]\n')
        yield {
            "ors-sdk": ENVIRONMENTS / "shapes",
            "openreward": moved,
            "tutor": tutor,
            "games": ENVIRONMENTS / "games",
        }


def build_all(found: Mapping[str, Path]) -> None:
    """Build the image of each folder as it is. Most of the time goes into collecting wheels, so two do that at once."""

    def build(*names: str) -> None:
        for name in names:
            build_environment(found[name], IMAGES[name])

    build("ors-sdk")  # and the base, if need be
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(build, "openreward", "tutor"), threads.submit(build, "games")]:
            done.result()


@contextmanager
def sdk_server(dialect: str, folder: Path) -> Iterator[str]:
    """Run the folder's ``server.py`` with the SDK's own server on a free port; the address is given."""
    module = {"ors-sdk": "ors", "openreward": "openreward.environments"}[dialect]
    port = free_port()
    # All that the host gives a container that could change an answer.
    environ = {**os.environ, "PYTHONHASHSEED": "0", "OPENREWARD_DISABLE_UPDATE_CHECK": "1"}
    command = [sys.executable, "-c", _LAUNCH, module, str(folder / "server.py"), str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_serving(process, url)
            yield url
        except BaseException:
            log.seek(0)
            print(log.read().decode(errors="replace")[-20_000:])
            raise
        finally:
            process.kill()
            process.wait()


def _wait_serving(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        assert process.poll() is None, f"the SDK's server ended with exit code {process.returncode}"
        with contextlib.suppress(OSError):
            opener.open(f"{url}/health", timeout=5).close()
            return
        assert time.monotonic() < deadline, "the SDK's server does not serve"
        time.sleep(0.05)
