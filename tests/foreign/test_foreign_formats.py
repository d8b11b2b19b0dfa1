"""Trajectories of mini-swe-agent, of ATIF and of messages: the turns that are in them, and what is refused and why."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from foreign_files import FILES, chat, content, seconds, trajectories
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.agent.spec import Ending
from concur_batch.foreign.formats import documents, read
from concur_batch.foreign.trajectory import Call, Trajectory, Unfit

FINISHED = Ending("finished", "answer")


def refusal(document: Any) -> str:
    with pytest.raises(Unfit) as caught:
        read(document, "x")
    return str(caught.value)


def test_mini_swe_agent_whose_commands_stand_in_the_text() -> None:
    (found,) = trajectories("mini_text.traj.json")
    assert (found.name, found.format, found.tools) == ("demo__hello-1", "mini-swe-agent", None)
    assert found.ending == Ending("finished", "answer", answer="hello\n")
    first, second, third = found.turns
    assert [message["role"] for message in first.before] == ["system", "user"]
    assert first.content == "THOUGHT: I look first.\n\n```bash\nls\n```"
    (call,) = first.calls
    assert (call.name, call.seconds, call.written) == ("environment", None, False)
    assert second.before == ({"role": "user", "content": call.output},)
    assert third.before[0]["content"].startswith("Please always provide")
    assert third.content.endswith("FINAL_OUTPUT\n```")
    assert third.calls[0].output == "hello\n"  # what nobody read any more is no prompt of a turn


def test_mini_swe_agent_with_tools_and_moments() -> None:
    (found,) = trajectories("mini_tools.traj.json")
    assert (found.name, found.ending.status, found.ending.reason) == ("mini_tools", "limit", "turns")
    assert found.timing == "measured"
    first, second = found.turns
    assert (first.reasoning, first.content) == ("wc counts lines.", "")
    lines, failed = first.calls
    assert (lines.arguments, lines.exit_code, lines.written) == ('{"command": "wc -l README.md"}', 0, True)
    assert (failed.exit_code, failed.output) == (1, "<returncode>1</returncode>\n<output>\n</output>")
    assert seconds(found.turns) == [[0.25, 1.0], [None]]
    assert [message["role"] for message in second.before] == ["tool", "tool"]
    assert [message["name"] for message in second.before] == ["bash", "bash"]
    assert second.calls == (Call("bash", '{"command":"true"}', written=False),)  # it stands in the text, fenced


def test_mini_swe_agent_in_the_protocol_of_responses() -> None:
    (found,) = trajectories("mini_responses.traj.json")
    first, second = found.turns
    assert (first.reasoning, first.content, second.content) == ("Count them.", "I count.", "42")
    assert [(call.name, call.output, call.seconds) for call in first.calls] == [("bash", "42 README.md", 1.5)]
    assert second.before == ({"role": "tool", "content": "42 README.md", "name": "bash"},)
    assert found.ending == Ending("finished", "answer", answer="42")


@pytest.mark.parametrize(
    ("info", "ending"),
    [
        ({}, FINISHED),
        ({"exit_status": "Submitted"}, Ending("finished", "answer", answer="")),
        ({"exit_status": "TimeExceeded"}, Ending("limit", "wall_seconds", "limit", "TimeExceeded")),
        ({"exit_status": "RepeatedFormatError"}, Ending("failed", "malformed", "model", "RepeatedFormatError")),
        ({"exit_status": None}, "it did not come to an end of its own: exit status none"),
        ({"exit_status": "APIError"}, "it did not come to an end of its own: exit status APIError"),
    ],
)
def test_an_agent_ends_as_it_ended(info: dict[str, Any], ending: Ending | str) -> None:
    document = content("mini_text.traj.json") | {"info": info}
    if isinstance(ending, str):
        assert refusal(document) == ending
    else:
        assert read(document, "x").ending == ending


def test_atif_and_the_helper_that_it_embeds() -> None:
    stocks, helper = trajectories("atif.json")
    assert (stocks.name, helper.name, stocks.format) == ("stocks", "helper", "atif")
    assert stocks.tools is not None
    assert stocks.tools[0]["function"]["name"] == "search"
    first, second, third = stocks.turns
    assert [message["role"] for message in first.before] == ["system", "user"]
    # Results are placed by the call's id; the time to the next step is that of the first to be told.
    assert [(call.arguments, call.output) for call in first.calls] == [
        ('{"query":"price"}', "It is $185.35."),
        ('{"query":"volume"}', "1.5M shares"),
    ]
    assert stocks.timing == "between_steps"
    assert seconds(stocks.turns) == [[0.0, 1.5], [None], []]
    assert [message["content"] for message in second.before] == ["1.5M shares", "It is $185.35."]
    assert [(message["role"], message["content"]) for message in third.before] == [
        ("tool", ""),
        ("system", "Knowledge was added.\nThe market is closed."),
    ]
    assert [turn.content for turn in helper.turns] == ["No."]


def atif(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"schema_version": "ATIF-v1.4", "agent": {"name": "a", "version": "1"}, "steps": list(steps)}


def test_atif_steps_that_are_no_turns_of_the_model() -> None:
    found = read(
        atif(
            {"source": "user", "message": "old"},
            {"source": "agent", "message": "old answer", "is_copied_context": True},
            {"source": "user", "message": "Go on."},
            {"source": "agent", "message": "one"},
            {"source": "agent", "message": "by rule", "llm_call_count": 0,
             "observation": {"results": [{"content": "done"}]}},
            {"source": "agent", "message": "two", "observation": {"results": [{"content": "shown"}]}},
        ),
        "x",
    )  # fmt: skip
    first, second = found.turns
    assert [message["content"] for message in first.before] == ["old", "old answer", "Go on."]
    assert [message["role"] for message in first.before] == ["user", "assistant", "user"]
    assert second.before == ({"role": "user", "content": "by rule\ndone"},)
    assert [(call.name, call.output) for call in second.calls] == [("environment", "shown")]
    replaced = {"source": "system", "message": "x", "extra": {"context_management": {"boundary": "replace"}}}
    assert refusal(atif({"source": "user", "message": "a"}, replaced, {"source": "agent", "message": "b"})) == (
        "a step replaces what the model saw before, and a replay only appends"
    )


def test_messages_of_a_protocol_with_tools() -> None:
    first, again, twice = (read(part, "x") for part in documents(content_lines()[:3]))
    assert (first.name, again.name, twice.name) == ("sum", "sum", "x")
    assert first.tools is not None
    assert first.ending == FINISHED
    called, answered = first.turns
    assert [message["role"] for message in called.before] == ["system", "user"]
    assert called.calls == (Call("calculate", '{"expression":"2+2"}', "4"),)
    assert answered.before == ({"role": "tool", "content": "4", "name": "calculate"},)
    assert [(turn.before, turn.content) for turn in twice.turns][1] == ((), "It.")


def content_lines() -> list[Any]:
    return [orjson.loads(line) for line in (FILES / "messages.jsonl").read_bytes().splitlines() if line]


def test_calls_without_ids_are_answered_in_their_order() -> None:
    call = {"function": {"name": "f", "arguments": "not JSON"}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": [call, {"id": "b", "function": {"name": "g"}}, call]},
        {"role": "tool", "content": "first"},
        {"role": "tool", "tool_call_id": "b", "content": "second"},
    ]
    (turn,) = read(messages_of(messages), "x").turns
    assert turn.calls == (Call("f", "not JSON", "first"), Call("g", "{}", "second"), Call("f", "not JSON"))


def messages_of(messages: list[Any]) -> Any:
    """A bare list of messages is a trajectory too."""
    (document,) = documents(messages)
    return document


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (chat(("user", "a")), "it has no turn of an assistant"),
        (chat(), "it has no turn of an assistant"),
        (chat(("assistant", "a")), "it begins with the assistant's turn: nothing tells the prompt"),
        ({"messages": {}}, "it is of no format that is known: mini-swe-agent, ATIF, or an object with `messages`"),
        (None, "it is of no format that is known: mini-swe-agent, ATIF, or an object with `messages`"),
        ({"messages": [{"role": "user", "content": 1}]}, "a message's content is neither a text nor a list of parts"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "it shows images, and a replay sends "
                                                                              "texts"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "a part of a message's content is no text"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_has_a_reason(document: Any, reason: str) -> None:
    assert refusal(document) == reason


_SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, width=32) | st.text()
_JSON = st.recursive(
    _SCALARS, lambda under: st.lists(under, max_size=4) | st.dictionaries(st.text(), under, max_size=4)
)
_KEYS = st.sampled_from(
    ["role", "content", "tool_calls", "id", "function", "name", "arguments", "extra", "timestamp", "actions", "command",
     "output", "type", "call_id", "text", "summary", "source", "message", "observation", "results", "metrics", "tools",
     "source_call_id", "prompt_token_ids", "completion_token_ids", "context_management", "boundary", "llm_call_count",
     "reasoning_content", "exit_status", "info", "returncode", "tool_call_id", "function_name", "is_copied_context"]
)  # fmt: skip
_WORDS = st.sampled_from(
    ["user", "assistant", "tool", "system", "exit", "agent", "message", "function_call", "function_call_output", "c1",
     "reasoning", "2026-04-11T10:30:00Z", "Submitted", "0001-01-01T00:00:00+23:59"]
)  # fmt: skip
# JSON that is nearly a trajectory: the keys and words of the formats, with anything under them.
_NEARLY = st.recursive(
    _SCALARS | _WORDS,
    lambda under: st.lists(under, max_size=4) | st.dictionaries(_KEYS, under, max_size=5),
    max_leaves=30,
)
_DOCUMENTS = st.builds(
    lambda steps, more, kind: {**more, **kind, "messages": steps, "steps": steps},
    st.lists(st.dictionaries(_KEYS, _NEARLY, max_size=6), max_size=6),
    st.dictionaries(_KEYS, _NEARLY, max_size=3),
    st.sampled_from(
        [{}, {"schema_version": "ATIF-v1.7"}, {"trajectory_format": "mini-swe-agent-1"},
         {"trajectory_format": "mini-swe-agent-1.1"}]
    ),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(_JSON | _NEARLY | _DOCUMENTS | st.lists(_DOCUMENTS, max_size=3))
def test_any_json_is_a_trajectory_or_has_a_reason(value: Any) -> None:
    for document in documents(orjson.loads(orjson.dumps(value))):
        try:
            found = read(document, "x")
        except Unfit as error:
            assert str(error)
        else:
            check(found)


def check(found: Trajectory) -> None:
    assert found.name
    assert found.turns
    assert found.turns[0].before
    for turn in found.turns:
        assert all(isinstance(message["content"], str) for message in turn.before)
        assert all(call.name and (call.seconds is None or call.seconds >= 0) for call in turn.calls)


def test_what_nests_deeply_is_refused_and_does_not_break() -> None:
    deep: Any = {}
    for _ in range(300):
        deep = {"a": deep}
    call = {"id": "a", "function": {"name": "f", "arguments": deep}}
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    assert refusal({"messages": messages}) == "a call's arguments are nested too deeply"
    nested: Any = atif({"source": "user", "message": "a"}, {"source": "agent", "message": "b"})
    for _ in range(400):
        nested = atif() | {"subagent_trajectories": [nested]}
    assert len(list(documents(nested))) == 401
