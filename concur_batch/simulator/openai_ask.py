"""What OpenAI's requests ask for, turned into what `/generate` takes, as SGLang turns them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from concur_batch.simulator.ask import Ask, BadRequest, pack_ids, read_sampling, whole
from concur_batch.simulator.model import Function
from concur_batch.simulator.prompt import ChatPrompt
from concur_batch.simulator.request import TokenIds

_COMPLETION_TOKENS = 16  # SGLang's default, OpenAI's too
_UNSUPPORTED = ("logprobs", "top_logprobs", "response_format", "echo", "suffix", "lora_path", "session_params")
# Sampling that has the same name in both.
_SAME = ("stop", "stop_token_ids", "ignore_eos", "no_stop_trim", "n", "regex", "ebnf", "stop_regex")


@dataclass(frozen=True, slots=True, eq=False)
class OpenaiAsk:
    """A request of one of OpenAI's routes. `functions` are the names that a call may have; none: text stays text."""

    ask: Ask
    model: str
    functions: frozenset[str] = frozenset()
    include_usage: bool = False
    continuous_usage: bool = False


def read_completion(body: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: int, rank: object) -> OpenaiAsk:
    """The body of a `/v1/completions`; `rank` is what its header asks for. Raises BadRequest."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise BadRequest("The simulated engine takes one prompt a request: send several requests.")
        prompt = prompt[0]
    if not prompt:
        raise BadRequest("Prompt cannot be empty")
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt).ids
    elif isinstance(prompt, list):
        ids = prompt
    else:
        raise BadRequest("`prompt` must be a string or a list of token ids.")
    limit = whole(body, "max_tokens", _COMPLETION_TOKENS)
    return _openai_ask(body, pack_ids(ids, vocabulary), limit, rank)


def read_chat(
    body: Mapping[str, Any], prompt: ChatPrompt, tokenizer: Tokenizer, vocabulary: int, parses: bool, rank: object
) -> OpenaiAsk:
    """The body of a `/v1/chat/completions`; `parses` where the engine reads calls. Raises BadRequest."""
    tools = _tools(body)
    choice = body.get("tool_choice") or "auto"
    functions = [tool["function"] for tool in tools]
    names = frozenset(function["name"] for function in functions)
    offered: Sequence[Function] = functions
    if isinstance(choice, dict):
        named = (choice.get("function") or {}).get("name")
        if named not in names:
            raise BadRequest(f"Tool '{named}' not found in tools list.")
        offered = [function for function in functions if function["name"] == named]
    elif choice == "required" and not tools:
        raise BadRequest("Tools cannot be empty if tool choice is set to required.")
    elif choice not in ("auto", "required", "none"):
        raise BadRequest("`tool_choice` must be none, auto, required or a function.")
    ids = tokenizer.encode(prompt.render(body, tools if choice != "none" else []), add_special_tokens=False).ids
    # Who has just been told what a function returned answers in words, so that a loop over calls comes to its end.
    told = choice == "auto" and body["messages"][-1]["role"] == "tool"
    if choice == "none" or told or not parses:
        offered = ()
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is not None:
        limit = whole({"max_completion_tokens": limit}, "max_completion_tokens", 1)
    called = names if parses and choice != "none" else frozenset()
    return _openai_ask(body, pack_ids(ids, vocabulary), limit, rank, offered, called)


def _openai_ask(
    body: Mapping[str, Any],
    input_ids: TokenIds,
    limit: int | None,
    rank: object,
    offered: Sequence[Function] = (),
    functions: frozenset[str] = frozenset(),
) -> OpenaiAsk:
    for option in _UNSUPPORTED:
        # Such as {"type": "text"} is what there is anyway.
        if body.get(option) and body[option] != {"type": "text"}:
            raise BadRequest(f"The simulated engine does not support `{option}`.")
    model, rid, session = body.get("model") or "default", body.get("rid"), body.get("session_id")
    if not isinstance(model, str) or not isinstance(rid, str | None) or not isinstance(session, str | None):
        raise BadRequest("`model`, `rid` and `session_id` must be strings.")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("`stream_options` must be an object.")
    fields = {name: body[name] for name in _SAME if name in body}
    sampling = read_sampling({**fields, "sampling_seed": body.get("seed")}, limit)
    return OpenaiAsk(
        Ask(
            input_ids,
            sampling,
            rid or None,
            body.get("routed_dp_rank") if rank is None else rank,
            bool(body.get("stream")),
            offered,
            session,
        ),
        model,
        functions,
        bool(options.get("include_usage")),
        bool(options.get("continuous_usage_stats")),
    )


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise BadRequest("`tools` must be a list.")
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"tools.{number}: must be a function with a name.")
    return tools
