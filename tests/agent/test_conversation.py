"""Histories as messages: what a strict server takes back, what an answer asks for, and turns played with them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_desk import SPEC, TOKENIZER, Desk, Lines, Outcome, SayingEngine, make

from concur_batch.agent.actions import Answer, Call, Calls, Malformed, Truncated
from concur_batch.agent.conversation import Conversation, encode_pieces
from concur_batch.agent.prompting import Format
from concur_batch.agent.rollout import Rollout
from concur_batch.agent.services import Services
from concur_batch.control.member import Spent
from concur_batch.engine.pools import PoolAddress
from concur_batch.engine.protocol import Generation, GenerationRequest
from tests.engine.chat_server import Said, calls, history_fault, says
from tools_env.catalogue import CATALOGUE
from tools_env.spec import ToolResult

SPECS = [CATALOGUE[name] for name in ("bash", "list_files", "submit")]


def conversation(format: Format = "hermes", system: str = "Be brief.") -> Conversation:
    return Conversation(system, "Do it.", SPECS, format, TOKENIZER.template)


def exchanges(action: Any) -> list[tuple[Call, ToolResult]]:
    return [(call, ToolResult("ok", json.dumps(call.arguments))) for call in action.calls]


def test_it_begins_with_the_prompt_and_offers_the_tools() -> None:
    chat = conversation().chat
    assert chat.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Do it."})
    assert chat.tools is not None
    assert [tool["function"]["name"] for tool in chat.tools] == ["bash", "list_files", "submit"]
    assert chat.tools[0]["function"]["parameters"] == SPECS[0].parameters


def test_a_format_without_calls_tells_of_its_tools_in_the_prompt() -> None:
    chat = conversation("react").chat
    assert chat.tools is None
    assert "Action Input" in chat.messages[0]["content"]


def test_calls_are_answered_under_their_ids_and_the_message_stays_as_it_came() -> None:
    talk = conversation()
    message, _ = calls(("bash", '{"command":  "ls"}'), ("list_files", {}), content="I look.")
    message |= {"role": "assistant", "refusal": None, "annotations": [], "reasoning_content": "Hm."}
    pieces, action = talk.hear(message, "stop")
    assert action == Calls((Call("bash", {"command": "ls"}), Call("list_files", {})), "")
    talk.observe(exchanges(action))
    heard, *answered = talk.chat.messages[2:]
    assert heard == {
        "role": "assistant", "content": "I look.", "tool_calls": message["tool_calls"], "reasoning_content": "Hm.",
    }  # fmt: skip
    assert answered == [
        {"role": "tool", "name": "bash", "tool_call_id": "call_0", "content": '{"command": "ls"}'},
        {"role": "tool", "name": "list_files", "tool_call_id": "call_1", "content": "{}"},
    ]
    assert "".join(piece.text for piece in pieces) == (
        '<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{"name": "bash", "arguments": {"command":  "ls"}}'
        '\n</tool_call>\n<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>'
    )


def test_the_same_call_again_runs_once_and_is_answered_twice() -> None:
    talk = conversation()
    message, _ = calls(("bash", '{"command": "ls"}'), ("list_files", {}), ("bash", '{"command":"ls"}'))
    _, action = talk.hear(message, "stop")
    assert isinstance(action, Calls)
    assert [call.name for call in action.calls] == ["bash", "list_files"]
    talk.observe(exchanges(action))
    answered = [(message["tool_call_id"], message["content"]) for message in talk.chat.messages[3:]]
    assert answered == [("call_0", '{"command": "ls"}'), ("call_1", "{}"), ("call_2", '{"command": "ls"}')]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (calls(("bash", '{"command": ')), "JSON does not parse"),
        (calls(("bash", "[1]")), "must be one JSON object"),
        (calls(("bash", '{"command": "ls"}, "name": "submit"')), "nothing may follow"),
        (calls(("bash", {"command": "ls"}), ("rm", {})), "there is no tool 'rm'"),
        (calls(("rm", {}), content="So."), "there is no tool 'rm'"),
        (says(""), "the reply is empty"),
        (says('{"name": "bash", "arguments": {}}'), "<tool_call> tags"),
    ],
)
def test_what_is_malformed_is_corrected_and_the_history_stays_one_that_servers_take(said: Said, reason: str) -> None:
    talk = conversation()
    pieces, action = talk.hear(said[0], "stop")
    assert isinstance(action, Malformed)
    assert reason in action.reason
    talk.correct(action.reason)
    assert history_fault(talk.chat.messages) is None
    assert action.reason in talk.chat.messages[-1]["content"]
    if said[0]["tool_calls"]:
        assert "<tool_call>" in "".join(piece.text for piece in pieces)


def test_a_cut_answer_is_not_acted_on() -> None:
    assert conversation().hear(calls(("bash", {"command": "ls"}))[0], "length")[1] == Truncated()
    assert conversation().hear(says("So")[0], "length")[1] == Truncated()


def test_text_is_an_answer_and_calls_in_the_text_are_heard_too() -> None:
    assert conversation().hear(says("Done.")[0], "stop")[1] == Answer("Done.")
    talk = conversation()
    _, action = talk.hear(says('<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>')[0], "stop")
    assert isinstance(action, Calls)
    talk.observe(exchanges(action))
    assert talk.chat.messages[-1] == {"role": "user", "content": "<tool_response>\n{}\n</tool_response>"}


@pytest.mark.parametrize(
    ("format", "text", "observed"),
    [
        ("react", 'Thought: t\nAction: bash\nAction Input: {"command": "ls"}', "Observation: "),
        ("bash", "```bash\nls\n```", ""),
    ],
)
def test_the_other_formats_are_plain_messages(format: Format, text: str, observed: str) -> None:
    talk = conversation(format)
    _, action = talk.hear({"role": "assistant", "content": text, "tool_calls": []}, "stop")
    assert isinstance(action, Calls)
    talk.observe(exchanges(action))
    assert [message["role"] for message in talk.chat.messages[2:]] == ["assistant", "user"]
    assert talk.chat.messages[-1]["content"].startswith(observed)
    assert history_fault(talk.chat.messages) is None


MESSAGES = st.one_of(
    st.text(max_size=20).map(says),
    st.lists(
        st.tuples(
            st.sampled_from(["bash", "list_files", "rm", ""]),
            st.sampled_from(
                ['{"command": "ls"}', '{"command":"a\\nb"}', '{"command":"a\nb"}', "{}", "", "{", "null", "[]"]
            ),
        ),
        min_size=1,
        max_size=4,
    ).map(lambda asked: calls(*asked)),
)


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=5))
def test_whatever_is_said_the_history_is_one_that_servers_take(turns: list[Said]) -> None:
    talk = conversation()
    for message, _ in turns:
        pieces, action = talk.hear({"role": "assistant", **message}, "stop")
        if isinstance(action, Calls):
            talk.observe(exchanges(action))
        elif isinstance(action, Malformed):
            talk.correct(action.reason)
        assert history_fault(talk.chat.messages) is None
        text = "".join(piece.text for piece in pieces)
        assert TOKENIZER.decode(encode_pieces(TOKENIZER, pieces)) == text


class Chatting(SayingEngine):
    """Says its messages; counts 7 tokens a message beyond what our tokenizer would, and `output` for what it says."""

    def __init__(self, *said: Said, cached: int | None = None, output: int = 60, prefill: float | None = None) -> None:
        super().__init__("")
        self.said = list(said)
        self.cached = cached
        self.output = output
        self.prefill = prefill
        self.counted: list[int] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        assert request.chat is not None
        assert history_fault(request.chat.messages) is None
        self.requests.append(request)
        message, reason = self.said.pop(0)
        tokens = len(request.input_ids) + 7 * len(request.chat.messages)
        self.counted.append(tokens)
        finish = "length" if reason == "length" else "stop"
        told: dict[str, Any] = {"told_output_tokens": self.output, "prefill_seconds": self.prefill}
        return Generation([], finish, tokens, self.cached, message=message, **told)  # type: ignore[arg-type]


async def play(engine: Chatting, **limits: Any) -> tuple[Outcome, Lines, list[Spent]]:
    desk, rows, spent = Desk(), Lines(), list[Spent]()
    services: Services = make(engine, desk, rows, **limits)
    address = PoolAddress("0", "http://a", None, None, 1, 8000, "openai", "m")
    config = replace(services.config, pools=(address,))
    services = replace(services, config=config, spend=lambda pool, cost: spent.append(cost))
    outcome = await Rollout(SPEC, services).run()
    assert desk.is_free()
    return outcome, rows, spent


WORK, SUBMIT = calls(("work", {"step": 1})), calls(("submit", {"answer": "42"}))


async def test_an_agent_works_by_messages_and_its_ids_are_estimates() -> None:
    engine = Chatting(WORK, calls(("work", "{"), prefix="bad"), SUBMIT)
    (ending, row), lines, spent = await play(engine)
    assert (ending.status, ending.answer, row["turns"], row["tool_calls"], row["malformed_turns"]) == (
        "finished", "42", 3, 2, 1,
    )  # fmt: skip
    turns = lines.rows("turns")
    assert [turn["ids_estimated"] for turn in turns] == [True] * 3
    assert [turn["action"] for turn in turns] == ["calls", "malformed", "calls"]
    assert [turn["input_tokens"] for turn in turns] == engine.counted
    assert [turn["context_tokens"] for turn in turns] == [tokens + 60 for tokens in engine.counted]
    assert [turn["output_tokens"] for turn in turns] == [60] * 3
    assert "<tool_call>" in turns[0]["output_text"]
    assert turns[0]["output_ids"]
    untold = ("cached_device_tokens", "first_tokens", "recomputed_tokens", "rounding_tokens", "retractions")
    assert {line[name] for line in [row, *turns] for name in untold} == {None}
    assert {(cost.input_tokens, cost.device_hit_tokens, cost.recomputed_tokens) for cost in spent} == {(0, 0, 0)}
    assert row["context_tokens"] == engine.counted[-1] + 60


async def test_what_the_server_counts_is_what_is_known() -> None:
    engine = Chatting(WORK, SUBMIT, cached=50, output=5, prefill=2.0)
    (_, row), lines, spent = await play(engine)
    first, second = lines.rows("turns")
    assert (first["first_tokens"], first["recomputed_tokens"]) == (engine.counted[0] - 50, 0)
    # Known is the first turn as the server has counted it, but for its last token.
    assert second["recomputed_tokens"] == engine.counted[0] + 5 - 1 - 50
    for turn in (first, second):
        assert turn["input_tokens"] == 50 + turn["first_tokens"] + turn["recomputed_tokens"] + turn["rounding_tokens"]
    assert [cost.input_tokens for cost in spent] == engine.counted
    # It has kept its place: all that was known should have been found.
    assert [(cost.kept_tokens, cost.lost_tokens) for cost in spent] == [
        (0, 0),
        (engine.counted[0] + 5 - 1, second["recomputed_tokens"]),
    ]
    assert [cost.prefill_tokens_per_second for cost in spent] == [(tokens - 50) / 2 for tokens in engine.counted]
    assert (row["cached_device_tokens"], row["retractions"]) == (100, None)


async def test_limits_count_as_the_server_does() -> None:
    free = Chatting(WORK, SUBMIT)
    await play(free)
    estimate = len(free.requests[1].input_ids)  # which alone would leave room for another turn
    assert free.counted[0] < estimate
    (ending, row), _, _ = await play(Chatting(WORK, SUBMIT), context_tokens=estimate + 1)
    assert (ending.status, ending.reason, row["turns"]) == ("limit", "context", 1)


async def test_a_cut_turn_ends_the_agent() -> None:
    (ending, row), _, _ = await play(Chatting((WORK[0], "length")))
    assert (ending.status, ending.reason, row["tool_calls"]) == ("limit", "length", 0)
