"""The simulated server behind its routes: requests in, tokens out, in real time."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tokenizers import Tokenizer

from concur_batch.hub.directory import DirectoryError, end_tokens, template_sources, template_variables
from concur_batch.hub.environment import TemplateError, template_environment
from concur_batch.simulator.ask import Ask, BadRequest
from concur_batch.simulator.chat import ChatModel
from concur_batch.simulator.driver import Driver, Run
from concur_batch.simulator.engine import Counters, EngineCore
from concur_batch.simulator.metrics import Served
from concur_batch.simulator.model import Model
from concur_batch.simulator.output import Output, Speller, decide
from concur_batch.simulator.prompt import ChatPrompt
from concur_batch.simulator.request import Completion
from concur_batch.simulator.script import ScriptedModel, read_scripts
from concur_batch.simulator.server_config import ConfigError, ServerConfig
from concur_batch.simulator.synthetic import SyntheticModel


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """How far a generation is: its first `tokens` tokens with their whole text, and `completion` at the end."""

    tokens: int
    text: str
    completion: Completion | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """A request under way."""

    rid: str
    rank: int
    driver: Driver
    run: Run
    output: Output
    speller: Speller
    served: Served

    async def end(self) -> Progress:
        """Wait for the end."""
        completion = await self.run.completion
        self.served.add(completion)
        return Progress(completion.completion_tokens, self.speller.upto(completion.completion_tokens), completion)

    async def progress(self) -> AsyncIterator[Progress]:
        """Tokens as the engine makes them; the last one has the completion."""
        while True:
            tokens = await self.run.more()
            if self.run.completion.done():
                yield await self.end()
                return
            yield Progress(tokens, self.speller.upto(tokens))

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the first attempt found on any tier."""
        return self.run.sequence.cached_tokens + self.run.sequence.host_cached_tokens

    def finish_reason(self, completion: Completion) -> dict[str, Any]:
        """In SGLang's words."""
        match completion.finish_reason:
            case "stop":
                return {"type": "stop", "matched": self.output.matched}
            case "length":
                return {"type": "length", "length": completion.completion_tokens}
            case "abort":
                return {"type": "abort", "message": completion.message}

    def meta_info(self, progress: Progress) -> dict[str, Any]:
        """What SGLang tells beside the tokens: times only once the request has ended."""
        sequence, completion = self.run.sequence, progress.completion
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": None if completion is None else self.finish_reason(completion),
            "prompt_tokens": sequence.input_tokens,
            "completion_tokens": progress.tokens,
            "cached_tokens": self.cached_tokens,
            "cached_tokens_details": {"device": sequence.cached_tokens, "host": sequence.host_cached_tokens},
            "num_retractions": max(0, sequence.attempts - 1),
            "dp_rank": self.rank,
        }
        if completion is None:
            return meta
        driver = self.driver
        meta["e2e_latency"] = driver.real_seconds(completion.end_seconds - completion.arrival_seconds)
        if completion.scheduled_seconds is not None:
            meta["queue_time"] = driver.real_seconds(completion.scheduled_seconds - completion.arrival_seconds)
            meta["forward_entry_time"] = driver.wall_seconds(completion.scheduled_seconds)
        if completion.first_token_seconds is not None:
            meta["prefill_finished_time"] = driver.wall_seconds(completion.first_token_seconds)
        return meta


class Service:
    """A tokenizer, a model and an engine for each dp rank. Made inside a running event loop. Raises ConfigError."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        path = config.tokenizer / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; `tokenizer` must name a directory with tokenizer.json")
        self.tokenizer = Tokenizer.from_file(str(path))
        self.vocabulary = self.tokenizer.get_vocab_size()
        try:
            sources, variables = template_sources(config.tokenizer), template_variables(config.tokenizer)
            self.prompt = ChatPrompt(template_environment(datetime.now()), sources, variables)
            self._end = _end_token(config, self.tokenizer)
        except TemplateError as error:
            raise ConfigError(f"{config.tokenizer}: chat template: {error}") from error
        except DirectoryError as error:
            raise ConfigError(str(error)) from error
        self._model = _load_model(config, self.tokenizer, self._end)
        self.drivers = [
            Driver(EngineCore(config.engine, config.cost), config.time_scale) for _ in range(config.dp_size)
        ]
        self._turns = itertools.cycle(range(config.dp_size))
        self.served = {False: Served(), True: Served()}  # by whether they were streamed
        self._in_flight: set[str] = set()

    @contextmanager
    def generation(self, ask: Ask) -> Iterator[Generation]:
        """Begin what is asked for. Leaving the context before the end aborts it. Raises BadRequest, RequestRejected."""
        rank = self._rank(ask.rank)
        context = self.config.engine.context_tokens
        wanted = ask.sampling.max_new_tokens
        if wanted is None:
            wanted = max(1, context - len(ask.input_ids))
        reply = self._model.reply(ask.input_ids, ask.sampling.seed, ask.offered)
        # Refused for its length anyway, where longer than the context.
        output = decide(reply, ask.sampling, min(max(1, wanted), context), self._end, self.tokenizer)
        forced = ask.sampling.ignore_eos and output.matched is None
        with self._claimed(ask.rid or uuid.uuid4().hex) as rid:
            with self.drivers[rank].submit(rid, ask.input_ids, output.ids, wanted, forced, ask.session) as run:
                speller = Speller(output, self.tokenizer)
                yield Generation(rid, rank, self.drivers[rank], run, output, speller, self.served[ask.stream])

    def counters(self) -> list[Counters]:
        """Of each dp rank, as of now."""
        return [driver.counters() for driver in self.drivers]

    def close(self) -> None:
        """Stop the clock."""
        for driver in self.drivers:
            driver.close()

    @contextmanager
    def _claimed(self, rid: str) -> Iterator[str]:
        if rid in self._in_flight:
            raise BadRequest(f"Duplicate request ID: {rid}")
        self._in_flight.add(rid)
        try:
            yield rid
        finally:
            self._in_flight.discard(rid)

    def _rank(self, rank: object) -> int:
        """The dp rank that the request names, or the next in turn."""
        if rank is None:
            return next(self._turns)
        if not isinstance(rank, int) or not 0 <= rank < self.config.dp_size:
            raise BadRequest(f"routed_dp_rank={rank} out of range [0, {self.config.dp_size})")
        return rank


def _end_token(config: ServerConfig, tokenizer: Tokenizer) -> int:
    """The token that ends a turn: ChatML's where there is one, else the model's own."""
    for token in ("<|im_end|>", *end_tokens(config.tokenizer)):
        number = tokenizer.token_to_id(token) if isinstance(token, str) else token
        if number is not None:
            return number
    raise DirectoryError(f"{config.tokenizer}: no eos_token in tokenizer_config.json or generation_config.json")


def _load_model(config: ServerConfig, tokenizer: Tokenizer, end: int) -> Model:
    """The simulated model that the configuration names. Raises ConfigError."""
    if sum(source is not None for source in (config.scripts, config.synthetic, config.chat)) != 1:
        raise ConfigError("the simulated engine needs exactly one of `scripts`, `synthetic` and `chat`")
    try:
        if config.chat is not None:
            return ChatModel(config.chat, tokenizer, end)
        if config.synthetic is not None:
            return SyntheticModel(config.synthetic, tokenizer, config.format)
        assert config.scripts is not None
        with config.scripts.open(encoding="utf-8") as lines:
            scripts = read_scripts(lines)
        return ScriptedModel(scripts, tokenizer, config.format, config.task_pattern)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{config.scripts or config.tokenizer}: {error}") from error
