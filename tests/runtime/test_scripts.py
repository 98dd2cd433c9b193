"""Files that serve their environments by themselves: the classes are had, no server starts."""

from __future__ import annotations

import pickle
import socket
import sys
from pathlib import Path

import pytest

from sandbox_runtime.loader import LoadError, load
from tests.runtime.authors import Author

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what the SDKs import

CLASSES = """
from SDK import Environment, Server, TextBlock, ToolOutput, tool

class Base(Environment):
    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{}]
    def get_prompt(self): return [TextBlock(text="p")]
    @tool
    def act(self) -> ToolOutput: return ToolOutput(blocks=[TextBlock(text="a")])

class B(Base): pass
class A(Base): pass
"""

AFTER = "\n    raise RuntimeError('the server has ended')\n"


@pytest.fixture(params=["ors", "openreward.environments"])
def author(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Author:
    def no_socket(*args: object) -> None:
        raise AssertionError("a server started")

    monkeypatch.setattr(socket.socket, "bind", no_socket)
    return Author(folder, request.param)


def names(*specs: str) -> list[str]:
    return [env.__name__ for env in load(specs)]


@pytest.mark.parametrize(
    "end",
    [
        "Server([A, B]).run(port=8080)" + AFTER.replace("    ", ""),
        "if __name__ == '__main__':\n    Server([A, B]).run()" + AFTER,
        "if __name__ == '__main__':\n    server = Server(environments=[A, B])\n    server.run('0.0.0.0', 80)" + AFTER,
        "def main():\n    try:\n        Server([A, B]).run()\n    except Exception:\n        raise SystemExit(1)"
        + AFTER
        + "main()",
        "app = Server([A, B]).app",
        "import uvicorn\nuvicorn.run(Server([A, B]).app, port=8080)" + AFTER.replace("    ", ""),
        "import asyncio, uvicorn\nasync def main():\n    config = uvicorn.Config(Server([A, B]).app)\n"
        "    await uvicorn.Server(config).serve()" + AFTER + "asyncio.run(main())",
        "Server([B]); Server([A, B]).run()",
        "first = Server([A, B]); Server([B]); first.run()",
        "class Mine(Server):\n    def run(self): super().run(port=1)\nMine([A, B]).run()" + AFTER.replace("    ", ""),
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--port', default=8080)\n"
        "Server([A, B]).run(port=parser.parse_args().port)",
    ],
)
def test_the_classes_of_a_server_in_its_order(author: Author, end: str) -> None:
    author.write(CLASSES + end, "server.py")
    assert names("server") == ["A", "B"]


def test_as_a_file(author: Author) -> None:
    author.write(CLASSES + "Server([A]).run()", "server.py")
    author.write(CLASSES + "Server([B]).run()", "pkg/serve.py")
    assert names("server.py") == ["A"]
    assert names("pkg/serve.py") == ["B"]


def test_classes_from_other_files(author: Author) -> None:
    author.write(CLASSES, "envs.py")
    author.write("from SDK import Server\nfrom envs import A, B\nServer([A, B]).run()", "server.py")
    assert names("server") == ["A", "B"]
    author.write("from envs import A, Server\ndef main(): Server([A]).run()", "start.py")
    author.write("import start\nif __name__ == '__main__':\n    start.main()", "main.py")
    assert names("main") == ["A"]


def test_a_class_of_a_file_that_serves(author: Author) -> None:
    author.write(CLASSES + "Server([A, B]).run()" + AFTER.replace("    ", ""), "server.py")
    assert names("server:B") == ["B"]
    assert names("server:A", "server:B") == ["A", "B"]


def test_a_module_that_only_defines_classes(author: Author) -> None:
    author.write(CLASSES.replace("Server, ", ""), "env.py")
    assert names("env") == ["Base", "B", "A"]


def test_it_is_run_as_python_runs_it(author: Author) -> None:
    path = author.write(
        "import sys\nseen = __name__, __file__, __package__, sys.argv, sys.modules['__main__'].__dict__ is globals()\n"
        + CLASSES
        + "Server([A]).run()",
        "server.py",
    )
    load(["server"])
    main = sys.modules["__main__"]
    assert main.seen == ("__main__", str(path), None, [str(path)], True)
    assert "server" not in sys.modules
    instance = pickle.loads(pickle.dumps(main.A({})))
    assert type(instance) is main.A


def test_a_package_may_serve_and_import_from_itself(author: Author) -> None:
    author.write("", "pkg/__init__.py")
    author.write(CLASSES, "pkg/envs.py")
    author.write("from SDK import Server\nfrom .envs import B\nServer([B]).run()", "pkg/server.py")
    assert names("pkg.server") == ["B"]


def test_the_sdk_is_as_before(author: Author) -> None:
    author.write(CLASSES + "Server([A]).run()", "server.py")
    load(["server"])
    sdk = sys.modules[f"{author.sdk}.server"]
    assert sdk.Server.run.__module__ == sdk.Server.__init__.__module__ == sdk.__name__


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("Server([]).run()", "ValueError: Server requires at least one environment"),
        ("Server([A, A]).run()", "duplicate env a"),
        ("Server([str]).run()", "TypeError: <class 'str'> is not Environment"),
        ("class C(A): act = None\nServer([C]).run()", "Environment 'c' has no tools defined"),
        ("Server([A]).run(port=int('x'))", "ValueError: invalid literal for int()"),
        (
            "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('port')\nparser.parse_args()\nServer",
            "SystemExit: 2",
        ),
        ("import not_installed\nServer([A])", "No module named 'not_installed'"),
    ],
)
def test_a_server_that_can_not_be(author: Author, end: str, message: str) -> None:
    path = author.write(CLASSES + end, "server.py")
    with pytest.raises(LoadError) as caught:
        load(["server"])
    assert message in str(caught.value)
    if "argparse" not in end:
        assert f"({path}, line " in str(caught.value)


def test_an_sdk_that_is_missing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for sdk, distribution in (("ors", "ors-sdk"), ("openreward.environments", "openreward")):
        top = sdk.partition(".")[0]
        path = Author(folder, sdk).write(CLASSES, f"env_{top}.py")
        for name in [name for name in sys.modules if name.partition(".")[0] == top]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, top, None)
        with pytest.raises(LoadError) as caught:
            load([path.stem])
        assert f"({path}, line 2)" in str(caught.value)
        assert f"add {distribution} to its requirements.txt" in str(caught.value)


@pytest.mark.parametrize(
    ("source", "spec", "message"),
    [
        ("x = 1", "server", "module 'server' defines no environment and starts no server with one"),
        ("if __name__ == '__main__':\n    x = 1", "server", "starts no server with one"),
        ("if __name__ == '__main__':\n    raise ValueError('x')", "server", "importing 'server' failed: ValueError: x"),
        ("", "python", "no module named 'python'; CMD names the environments, not a command"),
        (
            "",
            "/opt/env/server.py",
            "'/opt/env/server.py' names no environment; CMD names the environments, not a command",
        ),
    ],
)
def test_what_serves_nothing(folder: Path, source: str, spec: str, message: str) -> None:
    Author(folder, "ors").write(source, "server.py")
    with pytest.raises(LoadError) as caught:
        load([spec])
    assert message in str(caught.value)


def test_a_native_module_with_a_guard_is_not_run_as_a_program(folder: Path) -> None:
    native = CLASSES.replace("Server, ", "") + "if __name__ == '__main__':\n    raise RuntimeError('run as a program')"
    Author(folder, "sandbox_runtime").write(native)
    assert names("env") == ["Base", "B", "A"]
