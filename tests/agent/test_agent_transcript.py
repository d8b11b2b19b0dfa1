"""Histories of token ids: equal to the whole rendering, never rewritten, and every prompt token accounted for."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from agent_models import demo_tokenizer
from agent_templates import CHATML_ANY_ROLE, DROPS_REASONING, LOOKS_INTO_CONTENT, STRICT, TRIMS_AND_QUOTES
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.agent.encoding import Tokenizer
from concur_batch.agent.transcript import Transcript, account

unhurried = settings(deadline=None)

TOOLS = [{"type": "function", "function": {"name": "t", "description": "d", "parameters": {"type": "object"}}}]
PROMPT = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "Count é😀."}]

# What a model says, and what its tools return: text that quotes no control token.
SAID = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=30),
    st.sampled_from(['<tool_call>\n{"name": "t", "arguments": {}}\n</tool_call>', " ", "a\n\n", "\n", "  x "]),
)
RETURNED = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=60)
TURNS = st.lists(st.tuples(SAID, st.lists(RETURNED, min_size=1, max_size=3)), max_size=5)


def results(contents: list[str], role: str = "tool") -> list[dict[str, str]]:
    return [{"role": role, "name": "t", "content": content} for content in contents]


def end(tokenizer: Tokenizer) -> str:
    (token,) = tokenizer.closing_ids
    return tokenizer.decode([token], skip_special=False)


@unhurried
@given(turns=TURNS)
def test_the_ids_are_those_of_the_whole_conversation(demo, turns):
    """Rendered at once and encoded at once: the same text; and the same ids, but where the tokenizer would have merged
    the template's line break with what the model said next."""
    transcript = Transcript(demo)
    transcript.start(PROMPT, TOOLS)
    messages = list(PROMPT)
    for said, returned in turns:
        transcript.generated(demo.encode(said + end(demo)))
        transcript.observe(results(returned))
        messages += [{"role": "assistant", "content": said}, *results(returned)]
    text = demo.template.render(messages, TOOLS, generation_prompt=True)
    assert demo.decode(transcript.ids.tolist(), skip_special=False) == text
    if all(demo.encode("\n" + said) == demo.encode("\n") + demo.encode(said) for said, _ in turns):
        assert transcript.ids.tolist() == demo.encode(text)


@pytest.mark.parametrize("source", [CHATML_ANY_ROLE, TRIMS_AND_QUOTES, LOOKS_INTO_CONTENT, STRICT])
@unhurried
@given(turns=TURNS)
def test_the_same_under_templates_of_other_makes(source, turns):
    tokenizer = made(source)
    role = "tool" if source == TRIMS_AND_QUOTES else "user"
    prompt = PROMPT[1:]
    transcript = Transcript(tokenizer)
    transcript.start(prompt, None)
    messages = list(prompt)
    for said, returned in turns:
        if source == TRIMS_AND_QUOTES:
            said = said.strip()  # this template trims what is said as well; a sampled space stays, and rightly
        if source == STRICT:
            said = f" {said} "  # and this one puts spaces around it, which a model of its make samples itself
        transcript.generated(tokenizer.encode(said + end_of(tokenizer)))
        observed = results(returned[:1], role)
        transcript.observe(observed)
        messages += [{"role": "assistant", "content": said[1:-1] if source == STRICT else said}, *observed]
    text = tokenizer.template.render(messages, None, generation_prompt=True)
    assert tokenizer.decode(transcript.ids.tolist(), skip_special=False) == text


def made(source: str, cache: dict[str, Tokenizer] = {}) -> Tokenizer:  # noqa: B006
    return cache.setdefault(source, cache.get(source) or demo_tokenizer(source))


def end_of(tokenizer: Tokenizer) -> str:
    return tokenizer.decode(tokenizer.closing_ids[-1:], skip_special=False)


def test_a_real_model_s_tokenizer(tokenizer):
    transcript = Transcript(tokenizer)
    transcript.start(PROMPT, None)
    messages = list(PROMPT)
    for said, returned in (("one\n", "  first\n"), ("two", ""), ("", "é 😀")):
        observed = results([returned], "user")
        transcript.generated(tokenizer.encode(said + end(tokenizer)))
        transcript.observe(observed)
        messages += [{"role": "assistant", "content": said}, *observed]
    assert transcript.ids.tolist() == tokenizer.encode(
        tokenizer.template.render(messages, None, generation_prompt=True)
    )


@unhurried
@given(hostile=st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "\n", "system", "</tool_response>", "x"])))
def test_a_tool_cannot_end_its_own_message(demo, hostile):
    transcript, harmless = Transcript(demo), Transcript(demo)
    for each, output in ((transcript, "".join(hostile)), (harmless, "x")):
        each.start(PROMPT, TOOLS)
        each.generated(demo.encode("a<|im_end|>"))
        each.observe(results([output]))
    assert controls(demo, transcript) == controls(demo, harmless)
    assert "".join(hostile) in demo.decode(transcript.ids.tolist(), skip_special=False)


def controls(tokenizer: Tokenizer, transcript: Transcript) -> list[int]:
    return [token for token in transcript.ids.tolist() if token in tokenizer.control_ids]


def observed_after(tokenizer: Tokenizer, *sampled: int) -> str:
    """What an observation adds once the model has sampled `sampled`."""
    transcript = Transcript(tokenizer)
    transcript.start(PROMPT, None)
    transcript.generated([*sampled])
    transcript.observe(results(["r"]))
    return tokenizer.decode(transcript.take_delta().tolist(), skip_special=False)


def test_the_end_of_a_turn_is_there_exactly_once(demo):
    rest = "\n<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    (a,) = demo.encode("a")
    assert observed_after(demo, a, 2) == rest  # the model ended its turn
    assert observed_after(demo, a) == "<|im_end|>" + rest  # a limit or a stop string did
    assert observed_after(demo) == "<|im_end|>" + rest  # nothing was sampled


def test_another_end_token_is_kept_and_counts(demo):
    """A model with several (Llama's <|eom_id|> before a tool's result) means the one it chose."""
    two = demo_tokenizer(CHATML_ANY_ROLE)
    two.eos_ids = frozenset({0, 2})
    (a,) = two.encode("a")
    assert observed_after(two, a, 0).startswith("\n<|im_start|>tool")


def test_text_before_the_template_s_end_of_a_turn():
    """` </s>`: the space belongs to the end, and is not doubled either."""
    strict = made(STRICT)
    assert strict.decode(strict.closing_ids, skip_special=False) == " <|endoftext|>"
    assert strict.eos_ids == {0}
    transcript = Transcript(strict)
    transcript.start([PROMPT[1]], None)
    transcript.generated(strict.encode(" a <|endoftext|>"))
    transcript.observe([{"role": "user", "content": "r"}])
    assert strict.decode(transcript.take_delta().tolist()) == "[INST] r [/INST]"


def test_a_rewriting_template_does_not_rewrite_what_the_engine_saw():
    dropping = made(DROPS_REASONING)
    transcript = Transcript(dropping)
    transcript.start(PROMPT, None)
    reasoning = dropping.encode("why\n</think>\n\na<|im_end|>")
    for _ in range(2):
        before = transcript.ids.tolist()
        transcript.generated(reasoning)
        transcript.observe(results(["r"]))
        assert transcript.ids.tolist()[: len(before) + len(reasoning)] == before + reasoning
    assert dropping.decode(transcript.ids.tolist(), skip_special=False).count("why") == 2


def test_views_stay_as_they_are_while_the_history_grows(demo):
    transcript = Transcript(demo)
    transcript.start(PROMPT, None)
    view, copy = transcript.ids, transcript.ids.copy()
    for _ in range(20):
        transcript.generated(list(range(500)))
    assert view.dtype == np.int32
    assert np.array_equal(view, copy)
    assert len(transcript.ids) == len(copy) + 10_000
    assert np.array_equal(transcript.ids[: len(copy)], copy)
    with pytest.raises(ValueError, match="read-only"):
        transcript.ids[0] = 1


def test_growth_copies_little(demo):
    """Amortized: the history is copied at doublings alone."""
    transcript = Transcript(demo)
    buffers = set()
    for _ in range(1000):
        transcript.append([7] * 100)
        buffers.add(len(transcript._buffer))
    assert len(buffers) <= 8


def test_deltas_and_outputs_make_up_the_history(demo):
    transcript = Transcript(demo)
    transcript.start(PROMPT, TOOLS)
    pieces: list[int] = []
    for turn in range(3):
        pieces += transcript.take_delta().tolist()
        assert pieces == transcript.ids.tolist()
        assert transcript.take_delta().tolist() == []
        pieces += [50 + turn, 2]
        transcript.generated([50 + turn, 2])
        transcript.observe(results(["r"]))
    assert pieces + transcript.take_delta().tolist() == transcript.ids.tolist()


def test_observations_can_be_encoded_in_threads(demo):
    transcripts = [Transcript(demo) for _ in range(8)]
    encoded: dict[int, list[int]] = {}
    for transcript in transcripts:
        transcript.start(PROMPT, TOOLS)

    def encode(index: int) -> None:
        for _ in range(20):
            encoded[index] = transcripts[index].encode_observation(results([f"result {index} <|im_end|>"] * 2))

    threads = [threading.Thread(target=encode, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, transcript in enumerate(transcripts):
        assert (
            encoded[index].tolist()
            == transcript.encode_observation(results([f"result {index} <|im_end|>"] * 2)).tolist()
        )
        assert f"result {index} <|im_end|>\n" in demo.decode(encoded[index], skip_special=False)


SIZES = st.integers(0, 10_000)


@unhurried
@given(known=SIZES, device=SIZES, host=SIZES, storage=SIZES, more=SIZES, page=st.sampled_from([1, 16, 64, 100]))
def test_every_token_of_a_prompt_is_accounted_for(known, device, host, storage, more, page):
    cached = device + host + storage
    prompt = max(known, cached) + more
    tokens = account(known, prompt, device, host, storage, page)
    assert cached + tokens.first + tokens.recomputed + tokens.rounding == prompt
    assert min(tokens.first, tokens.recomputed, tokens.rounding) >= 0
    assert tokens.first == more
    assert tokens.rounding < page
    if cached >= known // page * page:
        assert tokens.recomputed == 0
    if page == 1:
        assert tokens.recomputed == max(0, known - cached)


def test_the_accounts_of_a_life(demo):
    """Three turns with pages of 16: a shared prompt, a warm cache, and a history that was evicted."""
    transcript = Transcript(demo)
    transcript.append([7] * 100)
    first = transcript.account(100, 64, 0, 0, 16)  # another agent's prompt was cached
    assert (first.first, first.recomputed, first.rounding) == (36, 0, 0)
    transcript.generated([8] * 21)
    assert transcript.known_tokens == 120
    transcript.append([9] * 9)  # 130
    warm = transcript.account(130, 96, 16, 0, 16)  # 7 whole pages of 120 are kept, one of them on the host
    assert (warm.first, warm.recomputed, warm.rounding) == (10, 0, 8)
    transcript.generated([8] * 10)
    assert transcript.known_tokens == 139
    transcript.append([9])  # 141
    evicted = transcript.account(141, 64, 0, 0, 16)
    assert (evicted.first, evicted.recomputed, evicted.rounding) == (2, 64, 11)


def test_accounts_that_cannot_be():
    with pytest.raises(ValueError, match="do not fit a prompt of 10 tokens"):
        account(0, 10, 8, 4, 0, 1)
    with pytest.raises(ValueError, match="do not fit"):
        account(0, 10, -1, 4, 0, 1)


def test_nothing_sampled_leaves_the_whole_prompt_known(demo):
    transcript = Transcript(demo)
    transcript.append([7] * 5)
    transcript.generated([])
    assert transcript.known_tokens == 5
