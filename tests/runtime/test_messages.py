"""The vocabulary: what is a message and what is not, and the data types' rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from sandbox_runtime import frames, messages
from sandbox_runtime.bodies import CreateSession, GetTaskRange
from sandbox_runtime.messages import (
    APPLICATION_ERROR,
    Fault,
    Hello,
    ImageBlock,
    ListToolsOutput,
    MessageError,
    Request,
    Response,
    RunToolError,
    RunToolOutput,
    RunToolSuccess,
    Split,
    TextBlock,
    ToolOutput,
    ToolSpec,
    parse_message,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
IDS = st.integers(0, 2**53)
SENDABLE_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def wire(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message as the other side sees it."""
    (received,) = frames.FrameDecoder().feed(frames.encode_frame(message))
    return received


class TestRoundTrips:
    @given(request_id=IDS, method=SENDABLE_TEXT, params=st.dictionaries(SENDABLE_TEXT, st.integers(-(2**31), 2**31)))
    def test_request(self, request_id: int, method: str, params: dict[str, Any]) -> None:
        parsed = parse_message(wire(messages.request(request_id, method, params)))
        assert parsed == Request(id=request_id, method=method, params=params)

    def test_notification(self) -> None:
        assert parse_message(wire(messages.notification("cancel", {"id": 1}))) == Request(
            method="cancel", params={"id": 1}
        )

    @pytest.mark.parametrize("value", [None, 0, [], {"a": [1]}, "text"])
    def test_result(self, value: Any) -> None:
        assert parse_message(wire(messages.result(7, value))) == Response(id=7, result=value)

    @given(request_id=IDS, fault=st.sampled_from(Fault), text=SENDABLE_TEXT)
    def test_error(self, request_id: int, fault: Fault, text: str) -> None:
        parsed = parse_message(wire(messages.error(request_id, fault, text)))
        assert isinstance(parsed, Response)
        assert parsed.error is not None
        assert (parsed.id, parsed.error.code, parsed.error.message) == (request_id, APPLICATION_ERROR, text)
        assert parsed.error.data.fault is fault

    @pytest.mark.parametrize(
        "value",
        [
            RunToolSuccess(
                output=ToolOutput(blocks=[TextBlock(text="a")], reward=0.5, finished=True, metadata={"k": [1]})
            ),
            RunToolSuccess(output=ToolOutput(blocks=[ImageBlock(data="aGk=", mimeType="image/png", detail={"w": 1})])),
            RunToolError(error="no", reason="not_found"),
            RunToolError(error="no"),
        ],
    )
    def test_tool_results_in_a_frame(self, value: RunToolSuccess | RunToolError) -> None:
        received = wire(messages.result(1, value))["result"]
        assert TypeAdapter(RunToolOutput).validate_python(received) == value


@given(message=st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "more"]), JSON))
def test_fuzz_any_object_is_a_message_or_a_message_error(message: dict[str, Any]) -> None:
    try:
        parsed = parse_message(message)
    except MessageError as exc:
        assert str(exc)
        return
    assert isinstance(parsed, Request | Response)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"jsonrpc": "2.0"},
        {"jsonrpc": "1.0", "method": "x"},
        {"method": 1},
        {"method": "x", "id": "one"},
        {"method": "x", "params": []},
        {"method": "x", "more": 1},
        {"id": None, "result": 1},
        {"id": 1, "result": 1, "error": {"code": 1, "message": "m", "data": {"fault": "cancelled"}}},
        {"id": 1, "error": {"code": 1, "message": "m"}},
        {"id": 1, "error": {"code": 1, "message": "m", "data": {"fault": "of my own"}}},
    ],
)
def test_what_is_no_message(message: dict[str, Any]) -> None:
    with pytest.raises(MessageError):
        parse_message(message)


def test_a_message_error_names_the_field_and_keeps_the_input_to_itself() -> None:
    with pytest.raises(MessageError) as caught:
        parse_message({"method": "x", "params": "top-secret"})
    assert "params" in str(caught.value)
    assert "top-secret" not in str(caught.value)


class TestDataTypes:
    @pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
    def test_a_reward_is_finite(self, reward: float) -> None:
        with pytest.raises(ValidationError):
            ToolOutput(blocks=[TextBlock(text="x")], reward=reward)

    def test_blocks_are_not_empty(self) -> None:
        with pytest.raises(ValidationError):
            ToolOutput(blocks=[])

    def test_all_fields_are_always_sent(self) -> None:
        assert ToolOutput(blocks=[TextBlock(text="x")]).model_dump() == {
            "blocks": [{"text": "x", "detail": None, "type": "text"}],
            "metadata": None,
            "reward": None,
            "finished": False,
        }

    def test_input_schema_null_is_never_left_out(self) -> None:
        spec = ToolSpec(name="t", description="", input_schema=None)
        assert ListToolsOutput(tools=[spec]).model_dump() == {
            "tools": [{"name": "t", "description": "", "input_schema": None}]
        }

    def test_unknown_block_type(self) -> None:
        with pytest.raises(ValidationError):
            ToolOutput.model_validate({"blocks": [{"type": "video", "data": ""}]})

    @pytest.mark.parametrize(
        ("split", "type_"), [("train", "train"), ("validation", "validation"), ("test", "test"), ("hard", "validation")]
    )
    def test_split_of_a_name(self, split: str, type_: str) -> None:
        assert Split.of(split).model_dump() == {"name": split, "type": type_}

    def test_split_of_a_split(self) -> None:
        split = Split(name="hard", type="test")
        assert Split.of(split) is split

    def test_range_bounds_may_be_left_out(self) -> None:
        assert GetTaskRange(split="s") == GetTaskRange(split="s", start=None, stop=None)

    def test_secrets_and_tokens_are_not_shown(self) -> None:
        hello = Hello(protocol=1, token="hunter2", runtime_version="0", environments=[])
        assert "hunter2" not in repr(hello)
        assert "hunter2" not in repr(CreateSession(task_spec={}, secrets={"k": "hunter2"}))


class TestCreateSession:
    @pytest.mark.parametrize(
        "body", [{"task_spec": {}}, {"split": "train", "index": 0}, {"split": "train", "index": -1}]
    )
    def test_one_task_source(self, body: dict[str, Any]) -> None:
        CreateSession.model_validate(body)

    @pytest.mark.parametrize(
        "body", [{}, {"split": "train"}, {"index": 1}, {"task_spec": {}, "split": "train", "index": 0}, {"x": 1}]
    )
    def test_both_neither_or_half(self, body: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            CreateSession.model_validate(body)
