"""Deferred modules: empty until they are looked into, and then as good as any. In processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_BEFORE = """
import sys, threading
from sandbox_runtime.deferred import defer_modules
defer_modules()
import asyncio, pydantic
class Model(pydantic.BaseModel):
    text: str
heavy = {"_ssl", "_hashlib", "asyncio.sslproto", "email.message"}
"""


def run(script: str, *path: Path) -> str:
    """Return what a script printed that runs after modules were deferred."""
    environ = {"PYTHONPATH": ":".join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _BEFORE + script], capture_output=True, text=True, env=environ, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_asyncio_and_a_model_load_none_of_it() -> None:
    assert run("print(heavy & {n for n, m in sys.modules.items() if '__getattr__' not in vars(m)})") == "set()"


@pytest.mark.parametrize(
    "script",
    [
        "import ssl; ssl.create_default_context(); asyncio.sslproto.SSLProtocol",
        "from ssl import SSLContext, PROTOCOL_TLS_CLIENT; asyncio.sslproto.SSLProtocol; SSLContext(PROTOCOL_TLS_CLIENT)",
        "from ssl import *; SSLError",
        "import secrets; assert secrets.compare_digest('a', 'a')",
        "import importlib.metadata; assert importlib.metadata.version('pydantic')",
        "from importlib.metadata import entry_points; assert entry_points().names",
        "from importlib.metadata import entry_points; assert entry_points(group='console_scripts').names",
        "from importlib import metadata, reload; metadata.version('pydantic'); reload(metadata).version('pydantic')",
        "import inspect, ssl; assert 'class SSLContext' in inspect.getsource(ssl)",
        "import ssl; assert not hasattr(ssl, 'no_such_name') and 'SSLContext' in dir(ssl)",
        "import hashlib, hmac; hmac.new(b'', b'', 'sha256')",
    ],
)
def test_whoever_looks_finds_it(script: str) -> None:
    run(script)


def test_threads_that_look_at_once_all_find_it() -> None:
    script = """
import ssl
found, ready = [], threading.Barrier(8)
def look():
    ready.wait()
    found.append(ssl.PROTOCOL_TLS_SERVER)  # one of the last names that the module makes
threads = [threading.Thread(target=look) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found))
"""
    assert run(script) == "8"


def test_a_plugin_of_pydantic_is_found(tmp_path: Path) -> None:
    (tmp_path / "plugged.py").write_text(
        "class Plugin:\n    def new_schema_validator(self, *_, **__):\n        print('asked')\n"
        "        return None, None, None\nplugin = Plugin()\n"
    )
    about = tmp_path / "plugged-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[pydantic]\nplugged = plugged:plugin\n")
    assert "asked" in run("", tmp_path)
