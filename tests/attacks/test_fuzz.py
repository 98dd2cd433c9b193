"""Any bytes from a runtime, and any body from a client: an answer or words, never a crash.

What once was found stays: the examples below are tried on every run.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from host.answers import InvalidAnswer, as_json, check, has_more_values, is_light
from host.channel import ChannelBroken, ProtocolViolation
from host.runtime_channel import RuntimeChannel
from sandbox_runtime import frames, messages
from sandbox_runtime.messages import Method

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
NEAR_MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0", 2]),
        "id": st.integers(-2, 5) | JSON,
        "method": st.sampled_from(["hello", "call", "cancel"]) | JSON,
        "params": st.fixed_dictionaries({}, optional={"token": TEXT, "protocol": st.integers(), "environments": JSON})
        | JSON,
        "result": JSON,
        "error": st.fixed_dictionaries({"code": st.integers(), "message": TEXT, "data": JSON}) | JSON,
    },
)


def framed(message: Any) -> bytes:
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


STREAMS = st.lists(st.binary(max_size=60) | NEAR_MESSAGES.map(framed), max_size=6).map(b"".join)
HELLO = framed(
    messages.request(0, "hello", {"protocol": 1, "token": "t", "runtime_version": "0", "environments": ["E"]})
)


async def _fed(stream: bytes) -> Exception:
    directory = Path(tempfile.mkdtemp(prefix="ors-", dir="/tmp"))
    channel = RuntimeChannel(directory / "c", token="t", runtime_uid=os.geteuid(), max_frame_bytes=10_000)
    try:
        await channel.listen(owner=None)
        _reader, writer = await asyncio.open_unix_connection(str(directory / "c" / "host.sock"))
        writer.write(stream)
        writer.close()
        return await asyncio.wait_for(channel.wait_ended(), 10)
    finally:
        await channel.aclose()
        shutil.rmtree(directory)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream=STREAMS, after_hello=st.booleans())
@example(stream=framed({"id": 10**400, "result": 1}), after_hello=True)
@example(stream=b"\xff\xff\xff\xff", after_hello=False)
@example(stream=framed({"id": 0, "result": None, "error": None}), after_hello=True)
@example(stream=HELLO, after_hello=True)
def test_any_bytes_end_in_words(stream: bytes, after_hello: bool) -> None:
    end = asyncio.run(_fed((HELLO if after_hello else b"") + stream))
    assert isinstance(end, ProtocolViolation | ChannelBroken)
    assert len(str(end)) < 2000


@settings(deadline=None)
@given(body=st.binary(max_size=200) | NEAR_MESSAGES.map(lambda message: json.dumps(message).encode()))
@example(body=b'{"id":1,"result":{"ok":true,"output":{"blocks":[{"type":"text","text":"x"}],"reward":1e400}}}')
@example(body=b'{"id":1,"result":{"ok":true,"output":{"blocks":[]}}}')
@example(body=b'{"id":true,"result":null}')
def test_check_gives_a_verdict_or_an_error(body: bytes) -> None:
    try:
        verdict = check(body, {1: Method.CALL, 2: Method.PROMPT, 3: Method.SETUP})
    except (frames.FrameError, messages.MessageError):
        return
    assert verdict.request_id in (1, 2, 3)
    assert sum(found is not None for found in (verdict.answer, verdict.fault, verdict.invalid)) == 1


@given(method=st.sampled_from(Method), value=JSON)
def test_an_answer_is_json_or_invalid(method: Method, value: Any) -> None:
    try:
        text = as_json(method, value)
    except InvalidAnswer as exc:
        assert len(str(exc)) <= 500
        return
    json.loads(text)


@given(value=JSON)
def test_no_value_is_overlooked_when_they_are_counted(value: Any) -> None:
    def count(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + sum(1 + count(item) for item in value.values())
        return 1 + sum(map(count, value)) if isinstance(value, list) else 1

    body = json.dumps(value).encode()
    assert has_more_values(body, count(value) // 3 - 2)
    assert not has_more_values(body, 3 * count(value) + 3)


def test_what_is_heavy_is_told_from_what_is_large() -> None:
    assert is_light(b'{"a":"' + b"[{,:" * 1000 + b'"}')
    assert is_light(b'{"a":"' + b"x" * 900_000 + b'"}')
    assert not is_light(b'{"a":[' + b"[]," * 20_000 + b"0]}")
    assert is_light(b'{"a":"' + b'one, two: [three], \\"four\\"\\\\' * 30_000 + b'"}')
    assert not is_light(b'{"a":["\\\\",' + b"[]," * 20_000 + b'"\\\\"]}')
    assert not is_light(b'{"a":["\\"",' + b"[]," * 20_000 + b'"\\""]}')
    assert not is_light(b'{"a":[' + b'"",' * 40_000 + b"0]}")
    assert not is_light(b'{"a":"' + b"x" * 2_200_000 + b'"}')
    assert not has_more_values(b'{"a":"' + b'\\"[{,:\\\\' * 1000 + b'"}', 10)
    with pytest.raises(frames.FrameError, match="values"):
        check(b'{"id":1,"result":[' + b"[]," * 1_000_001 + b"0]}", {1: Method.CALL})
