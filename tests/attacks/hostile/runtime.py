"""A runtime that is not ours: it speaks the protocol by itself, honestly until it is told to misbehave.

How it says hello is its command (``honest``, or one of ``hello_…``). What it does later is the task: ``{"at": METHOD, "do":
NAME}`` does NAME (a function ``do_…``) in place of answering METHOD; a call does what its input names.
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

DIRECTORY = "/run/ors"
MAX_FRAME = 64 * 2**20
TOOL = {"name": "probe", "description": "d", "input_schema": {"type": "object"}}
OK = {"ok": True, "output": {"blocks": [{"type": "text", "text": "fine"}]}}


def frame(message):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


def answer(number, result):
    return {"jsonrpc": "2.0", "id": number, "result": result}


class Runtime:
    def __init__(self):
        self.sock = self.connect()
        self.plan = {}
        self.waiting = []

    def connect(self):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(f"{DIRECTORY}/host.sock")
        return sock

    def send(self, message):
        self.sock.sendall(frame(message))

    def hello(self, **changes):
        token = pathlib.Path(DIRECTORY, "token").read_text()
        params = {"protocol": 1, "token": token, "runtime_version": "0", "environments": ["Hostile"], **changes}
        return {"jsonrpc": "2.0", "id": 0, "method": "hello", "params": params}

    def receive(self):
        head = self.read(4)
        return json.loads(self.read(int.from_bytes(head, "big")))

    def read(self, size):
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                sys.exit(0)
            data += piece
        return data

    def serve(self):
        while True:
            message = self.receive()
            method, number = message.get("method"), message.get("id")
            if method is None or number is None:
                continue  # the welcome, a cancellation
            params = message["params"]
            if method == "create":
                self.plan = params["task_spec"]
            doing = self.plan.get("do") if self.plan.get("at") == method else None
            if method == "call" and "do" in params["input"]:
                doing = params["input"]["do"]
            if doing:
                getattr(self, f"do_{doing}")(number, params)
            else:
                self.send(answer(number, self.honest(method)))

    def honest(self, method):
        return {
            "list_tools": {"tools": [TOOL]},
            "list_splits": [{"name": "train", "type": "train"}],
            "list_tasks": [{}],
            "get_task": {},
            "get_task_range": [{}],
            "num_tasks": 1,
            "prompt": [{"type": "text", "text": "p"}],
            "task_tools": {"tools": [TOOL]},
            "call": OK,
        }.get(method)

    # --- Hello ---

    def hello_wrong_token(self):
        self.send(self.hello(token="0" * 64))

    def hello_borrowed_token(self):
        self.send(self.hello(token=sys.argv[2]))

    def hello_never(self):
        time.sleep(3600)

    def hello_twice(self):
        self.sock.sendall(frame(self.hello()) * 2)

    def hello_answer_first(self):
        self.send(answer(0, None))

    def hello_huge(self):
        self.sock.sendall((2**32 - 1).to_bytes(4, "big"))
        self.pour(b"x")

    def hello_rubbish(self):
        with contextlib.suppress(OSError):
            self.sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)

    def hello_half(self):
        self.sock.sendall(frame(self.hello())[:-10])
        time.sleep(3600)

    def hello_million_names(self):
        self.send(self.hello(environments=["e" * 8] * 1_000_000))

    def hello_escapes(self):
        self.send(self.hello(environments=["\x1b[2Jevil\r\n", "../../etc"]))

    def hello_escapes_in_log(self):
        print("\x1b]0;owned\x07\x1b[2J" * 10, flush=True)
        sys.exit(3)

    # --- Frames ---

    def pour(self, data):
        with contextlib.suppress(OSError):
            while True:
                self.sock.sendall(data * 2**16)

    def do_announce_4g(self, number, params):
        self.sock.sendall((2**32 - 1).to_bytes(4, "big"))
        self.pour(b"[")

    def do_half(self, number, params):
        size = int(params.get("input", {}).get("size", 60 * 2**20))
        with contextlib.suppress(OSError):
            self.sock.sendall(MAX_FRAME.to_bytes(4, "big") + b'"' + b"x" * size)
        time.sleep(3600)

    def do_nested(self, number, params):
        deep = b"[" * 100_000 + b"]" * 100_000
        self.sock.sendall(frame(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (number, deep)))

    def do_nested_a_little(self, number, params):
        deep = b'{"a":' * 190 + b"1" + b"}" * 190
        output = b'{"ok":true,"output":{"blocks":[{"type":"text","text":"x"}],"metadata":%b}}' % deep
        self.sock.sendall(frame(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (number, output)))

    def do_slow(self, number, params):
        for byte in frame(answer(number, OK)):
            self.sock.sendall(bytes([byte]))
            time.sleep(0.3)

    def do_half_then_end(self, number, params):
        self.sock.sendall(frame(answer(number, OK))[:-3])
        sys.exit(0)

    def do_many_values(self, number, params):
        lists = b"[" + b"[]," * (20 * 2**20) + b"0]"
        output = b'{"ok":true,"output":{"blocks":[{"type":"text","text":"x"}],"metadata":{"m":%b}}}' % lists
        self.sock.sendall(frame(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (number, output)))

    def do_large(self, number, params):
        size = params["input"]["size"]
        text = '"hello, [world]"\n' * (size // 17)
        output = {"ok": True, "output": {"blocks": [{"type": "text", "text": text}]}}
        self.send(answer(number, output))

    def do_heavy(self, number, params):
        lists = b"[" + b"[]," * params["input"]["values"] + b"0]"
        output = b'{"ok":true,"output":{"blocks":[{"type":"text","text":"x"}],"metadata":{"m":%b}}}' % lists
        self.sock.sendall(frame(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (number, output)))

    def do_raw(self, number, params):
        raw = params["input"]["raw"].replace("ID", str(number))
        self.sock.sendall(frame(raw.encode("latin-1")))

    def do_unbalanced(self, number, params):
        self.sock.sendall(frame(b'{"jsonrpc":"2.0","id":%d,"result":"\xff\xfe"}' % number))

    # --- Answers ---

    def do_unasked(self, number, params):
        self.send(answer(number + 1000, OK))

    def do_twice(self, number, params):
        self.sock.sendall(frame(answer(number, OK)) * 2)

    def do_ask(self, number, params):
        self.send({"jsonrpc": "2.0", "id": 1, "method": "call", "params": {}})

    def do_notify(self, number, params):
        self.send({"jsonrpc": "2.0", "method": "cancel", "params": {"id": number}})

    def do_nothing(self, number, params):
        pass

    def do_out_of_order(self, number, params):
        self.waiting.append((number, params["input"]["n"]))
        if len(self.waiting) == 8:
            for known, n in reversed(self.waiting):
                output = {"ok": True, "output": {"blocks": [{"type": "text", "text": str(n)}]}}
                self.send(answer(known, output))

    def do_result(self, number, params):
        self.send(answer(number, params["input"]["result"]))

    def do_wrong_type(self, number, params):
        self.send(answer(number, {"not": "this"}))

    def do_long_error(self, number, params):
        body = {"code": 1, "message": "e" * (60 * 2**20), "data": {"fault": "environment_raised"}}
        self.send({"jsonrpc": "2.0", "id": number, "error": body})

    # --- The connection ---

    def do_second_connection(self, number, params):
        self.second = self.connect()
        time.sleep(3600)

    def do_many_connections(self, number, params):
        self.more = []
        with contextlib.suppress(OSError):
            for _ in range(2000):
                self.more.append(self.connect())
        time.sleep(3600)

    def do_hang_up(self, number, params):
        self.sock.close()
        time.sleep(3600)

    def do_never_read(self, number, params):
        time.sleep(3600)

    # --- Other ways ---

    def do_log(self, number, params):
        line = b"x" * 100 + b"\n"
        for _ in range(100):
            sys.stdout.buffer.write(line * 10_000)
        sys.stdout.flush()
        self.send(answer(number, OK))

    def do_eat_memory(self, number, params):
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1)) * 2**24)

    def do_fork(self, number, params):
        forked = 0
        try:
            while True:
                if os.fork() == 0:
                    time.sleep(3600)
                forked += 1
        except OSError:
            pass
        output = {"ok": True, "output": {"blocks": [{"type": "text", "text": str(forked)}]}}
        self.send(answer(number, output))

    def do_spin(self, number, params):
        for _ in range(16):
            threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
        self.send(answer(number, OK))

    def do_shell(self, number, params):
        done = subprocess.run(
            ["bash", "-c", params["input"]["command"]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20
        )
        output = {
            "ok": True,
            "output": {"blocks": [{"type": "text", "text": done.stdout.decode(errors="replace") or "-"}]},
        }
        self.send(answer(number, output))


runtime = Runtime()
if sys.argv[1] == "honest":
    runtime.send(runtime.hello())
else:
    getattr(runtime, sys.argv[1])()
runtime.serve()
