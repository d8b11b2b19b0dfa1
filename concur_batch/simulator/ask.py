"""What a request asks for, read from a body as SGLang's `/generate` takes it. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from concur_batch.simulator.model import Function
from concur_batch.simulator.request import TokenIds

_DEFAULT_NEW_TOKENS = 128  # SGLang's
# What a simulated model has none of.
_UNSUPPORTED = (
    *("return_logprob", "return_hidden_states", "image_data", "audio_data", "video_data", "lora_path"),
    "session_params",
)
_UNSUPPORTED_SAMPLING = ("json_schema", "regex", "ebnf", "structural_tag", "stop_regex")


class BadRequest(ValueError):
    """A request that is refused with 400; the message is one line."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the output is made and where it ends. `max_new_tokens` None: as many as fit into the context."""

    max_new_tokens: int | None
    seed: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    keep_stop: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """A request, whatever route it came by. `rid` and `rank` None: the server chooses."""

    input_ids: TokenIds
    sampling: Sampling
    rid: str | None = None
    rank: object = None
    stream: bool = False
    offered: Sequence[Function] = ()
    session: str | None = None


def read_ask(body: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: int) -> Ask:
    """The body of a `/generate`. Raises BadRequest."""
    for option in _UNSUPPORTED:
        if body.get(option):
            raise BadRequest(f"The simulated engine does not support `{option}`.")
    sampling = body.get("sampling_params") or {}
    if not isinstance(sampling, dict):
        raise BadRequest("`sampling_params` must be an object: one request at a time.")
    rid, rank = body.get("rid"), body.get("routed_dp_rank")
    if rid is not None and not isinstance(rid, str):
        raise BadRequest("`rid` must be a string: one request at a time.")
    session = body.get("session_id")
    if not isinstance(session, str | None):
        raise BadRequest("`session_id` must be a string.")
    limit = whole(sampling, "max_new_tokens", _DEFAULT_NEW_TOKENS)
    return Ask(
        input_ids=_input_ids(body, tokenizer, vocabulary),
        sampling=read_sampling(sampling, limit),
        rid=rid or None,
        rank=rank,
        stream=bool(body.get("stream")),
        session=session,
    )


def read_sampling(fields: Mapping[str, Any], max_new_tokens: int | None) -> Sampling:
    """The rest of SGLang's `sampling_params`. Raises BadRequest; what only shapes probabilities is passed over."""
    for option in _UNSUPPORTED_SAMPLING:
        if fields.get(option):
            raise BadRequest(f"The simulated engine does not support `{option}`.")
    if whole(fields, "n", 1) != 1:
        raise BadRequest("The simulated engine does not support `n` above 1: send several requests.")
    stop = fields.get("stop") or ()
    stop = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stop, list | tuple) or not all(isinstance(text, str) for text in stop):
        raise BadRequest("`stop` must be a string or a list of strings.")
    stop_ids = fields.get("stop_token_ids") or ()
    if not isinstance(stop_ids, list | tuple) or not all(isinstance(token, int) for token in stop_ids):
        raise BadRequest("`stop_token_ids` must be a list of integers.")
    return Sampling(
        max_new_tokens=max_new_tokens,
        seed=whole(fields, "sampling_seed", 0),
        ignore_eos=bool(fields.get("ignore_eos")),
        stop=tuple(text for text in stop if text),
        stop_token_ids=frozenset(stop_ids),
        keep_stop=bool(fields.get("no_stop_trim")),
    )


def whole(fields: Mapping[str, Any], name: str, default: int) -> int:
    """A whole number; `default` where it is not given or null. Raises BadRequest."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest(f"`{name}` must be an integer.")
    return value


def _input_ids(body: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: int) -> TokenIds:
    ids, text = body.get("input_ids"), body.get("text")
    if (ids is None) == (text is None):
        raise BadRequest("Give exactly one of `input_ids` and `text`.")
    if isinstance(text, str):
        ids = tokenizer.encode(text).ids
    if not isinstance(ids, list):
        raise BadRequest("`input_ids` must be a list of integers, `text` a string: one request at a time.")
    return pack_ids(ids, vocabulary)


def pack_ids(ids: list[Any], vocabulary: int) -> TokenIds:
    """The ids as an array. Raises BadRequest where they are not ids of the vocabulary."""
    try:
        # Much faster than numpy's own conversion of a list.
        packed: TokenIds = np.frombuffer(array("i", ids), dtype=np.int32)
    except (TypeError, OverflowError) as error:
        raise BadRequest(f"`input_ids` must be a list of integers: {error}") from error
    if len(packed) and int(packed.view(np.uint32).max()) >= vocabulary:  # negative ones are large here
        raise BadRequest(f"`input_ids` must be within the vocabulary, 0 to {vocabulary - 1}.")
    return packed
