"""The simulated engine behind SGLang's HTTP routes.

In a process of its own: `python -m concur_batch.simulator.server --config file.json`, whose content is a ServerConfig;
it prints one line with its address once it serves.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import sys
import uuid
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tokenizers import Tokenizer

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.conversation import ActionFormat
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.driver import Driver
from concur_batch.simulator.engine import Counters, EngineCore
from concur_batch.simulator.metrics import Served, render_loads, render_metrics, render_server_info
from concur_batch.simulator.model import ChatTokens, Model, Reply, with_length
from concur_batch.simulator.request import Completion, RequestRejected, TokenIds
from concur_batch.simulator.script import TASK_PATTERN, ScriptedModel, read_scripts
from concur_batch.simulator.synthetic import SyntheticModel, SyntheticScript

_BODY_BYTES = 64 * 1024 * 1024
_DEFAULT_NEW_TOKENS = 128  # SGLang's
_UNSUPPORTED = ("stream", "return_logprob")


class ConfigError(ValueError):
    """A ServerConfig that cannot be served; the message is one line."""


class ServerConfig(BaseModel):
    """What to serve: exactly one of `scripts` (JSON Lines, one script a task) and `synthetic`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: EngineConfig = Field(description="Of one dp rank: each has a pool, a tree and a scheduler of its own.")
    dp_size: int = Field(1, ge=1, description="Data-parallel ranks.")
    cost: CostModel = Field(default_factory=CostModel)
    time_scale: float = Field(1.0, gt=0, description="Simulated seconds per real second.")
    tokenizer: Path = Field(description="Directory with tokenizer.json.")
    scripts: Path | None = None
    synthetic: SyntheticScript | None = None
    format: ActionFormat = "hermes"
    task_pattern: str = Field(TASK_PATTERN, description="Finds the task's id in the first user message.")
    model_name: Annotated[str, Field(pattern=r"^[^\"\\\n]+$")] = "simulated"
    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65_535, description="0: any free one.")


def load_model(config: ServerConfig, tokenizer: Tokenizer) -> Model:
    """The simulated model that the configuration names. Raises ConfigError."""
    if (config.scripts is None) == (config.synthetic is None):
        raise ConfigError("the simulated engine needs exactly one of `scripts` and `synthetic`")
    try:
        if config.synthetic is not None:
            return SyntheticModel(config.synthetic, tokenizer, config.format)
        assert config.scripts is not None
        with config.scripts.open(encoding="utf-8") as lines:
            scripts = read_scripts(lines)
        return ScriptedModel(scripts, tokenizer, config.format, config.task_pattern)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{config.scripts or 'the synthetic model'}: {error}") from error


class BadRequest(Exception):
    """A request that is refused with 400."""


class Server:
    """The routes. Made inside a running event loop."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        path = config.tokenizer / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; `tokenizer` must name a directory with tokenizer.json")
        self._tokenizer = Tokenizer.from_file(str(path))
        self._model = load_model(config, self._tokenizer)
        self._end = ChatTokens.of(self._tokenizer).end
        self._vocabulary = self._tokenizer.get_vocab_size()
        # One a dp rank.
        self.drivers = [
            Driver(EngineCore(config.engine, config.cost), config.time_scale) for _ in range(config.dp_size)
        ]
        self._turns = itertools.cycle(range(config.dp_size))
        self._served = Served()
        self._in_flight: set[str] = set()

    def app(self) -> web.Application:
        """The web application."""
        app = web.Application(client_max_size=_BODY_BYTES)
        app.router.add_post("/generate", self.generate)
        app.router.add_post("/abort_request", self.abort_request)
        app.router.add_route("*", "/flush_cache", self.flush_cache)
        for path, handler in {
            "/metrics": self.metrics,
            "/v1/loads": self.loads,
            "/server_info": self.server_info,
            "/model_info": self.model_info,
            "/get_model_info": self.model_info,
            "/v1/models": self.models,
            "/health": self.health,
            "/ready": self.health,
        }.items():
            app.router.add_get(path, handler)
        return app

    async def generate(self, request: web.Request) -> web.Response:
        """POST /generate. A client that goes away aborts its request."""
        rid = None
        try:
            body = orjson.loads(await request.read())
            if not isinstance(body, dict):
                raise BadRequest("The body must be a JSON object.")
            rid = self._claim(body)
            answer = await self._generate(rid, body)
        except (BadRequest, RequestRejected, orjson.JSONDecodeError) as error:
            return _json({"error": {"message": str(error)}}, status=400)
        finally:
            if rid is not None:
                self._in_flight.discard(rid)
        return _json(answer)

    async def _generate(self, rid: str, body: Mapping[str, Any]) -> dict[str, Any]:
        for option in _UNSUPPORTED:
            if body.get(option):
                raise BadRequest(f"The simulated engine does not support `{option}`.")
        sampling = body.get("sampling_params") or {}
        if not isinstance(sampling, dict):
            raise BadRequest("`sampling_params` must be an object: one request at a time.")
        rank = self._rank(body)
        input_ids = self._input_ids(body)
        max_new_tokens = _whole(sampling, "max_new_tokens", _DEFAULT_NEW_TOKENS)
        reply = self._model.reply(input_ids, _whole(sampling, "sampling_seed", 0))
        ignore_eos = bool(sampling.get("ignore_eos"))
        if ignore_eos:
            # Refused for its length anyway, where longer than the context.
            wanted = min(max(1, max_new_tokens), self.config.engine.context_tokens)
            reply = with_length(reply, wanted, self._end)
        completion = await self.drivers[rank].generate(rid, input_ids, reply.output_ids, max_new_tokens, ignore_eos)
        self._served.add(completion)
        return self._answer(rid, rank, completion, reply)

    def _claim(self, body: Mapping[str, Any]) -> str:
        rid = body.get("rid") or uuid.uuid4().hex
        if not isinstance(rid, str):
            raise BadRequest("`rid` must be a string: one request at a time.")
        if rid in self._in_flight:
            raise BadRequest(f"Duplicate request ID: {rid}")
        self._in_flight.add(rid)
        return rid

    def _rank(self, body: Mapping[str, Any]) -> int:
        """The dp rank that the request names, or the next in turn."""
        rank = body.get("routed_dp_rank")
        if rank is None:
            return next(self._turns)
        if not isinstance(rank, int) or not 0 <= rank < self.config.dp_size:
            raise BadRequest(f"routed_dp_rank={rank} out of range [0, {self.config.dp_size})")
        return rank

    def _input_ids(self, body: Mapping[str, Any]) -> TokenIds:
        ids, text = body.get("input_ids"), body.get("text")
        if (ids is None) == (text is None):
            raise BadRequest("Give exactly one of `input_ids` and `text`.")
        if isinstance(text, str):
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not isinstance(ids, list):
            raise BadRequest("`input_ids` must be a list of integers, `text` a string: one request at a time.")
        try:
            # Much faster than numpy's own conversion of a list.
            packed: TokenIds = np.frombuffer(array("i", ids), dtype=np.int32)
        except (TypeError, OverflowError) as error:
            raise BadRequest(f"`input_ids` must be a list of integers: {error}") from error
        if len(packed) and int(packed.view(np.uint32).max()) >= self._vocabulary:  # negative ones are large here
            raise BadRequest(f"`input_ids` must be within the vocabulary, 0 to {self._vocabulary - 1}.")
        return packed

    def _answer(self, rid: str, rank: int, completion: Completion, reply: Reply) -> dict[str, Any]:
        driver = self.drivers[rank]
        meta: dict[str, Any] = {
            "id": rid,
            "finish_reason": self._finish_reason(completion),
            "prompt_tokens": completion.prompt_tokens,
            "completion_tokens": completion.completion_tokens,
            "cached_tokens": completion.cached_tokens,
            "cached_tokens_details": {"device": completion.cached_tokens, "host": 0},
            "num_retractions": completion.retractions,
            "dp_rank": rank,
            "e2e_latency": driver.real_seconds(completion.end_seconds - completion.arrival_seconds),
        }
        if completion.scheduled_seconds is not None:
            meta["queue_time"] = driver.real_seconds(completion.scheduled_seconds - completion.arrival_seconds)
            meta["forward_entry_time"] = driver.wall_seconds(completion.scheduled_seconds)
        if completion.first_token_seconds is not None:
            meta["prefill_finished_time"] = driver.wall_seconds(completion.first_token_seconds)
        return {"text": self._text(completion, reply), "output_ids": completion.output_ids, "meta_info": meta}

    def _text(self, completion: Completion, reply: Reply) -> str:
        """What was said. The synthetic model's words are not spelled out: nobody reads them."""
        if reply.text is None:
            return ""
        if completion.completion_tokens == len(reply.output_ids):
            return reply.text
        return self._tokenizer.decode(completion.output_ids.tolist())

    def _finish_reason(self, completion: Completion) -> dict[str, Any]:
        match completion.finish_reason:
            case "stop":
                return {"type": "stop", "matched": self._end}
            case "length":
                return {"type": "length", "length": completion.completion_tokens}
            case "abort":
                return {"type": "abort", "message": completion.message}

    async def abort_request(self, request: web.Request) -> web.Response:
        """POST /abort_request: every request whose rid starts with `rid`, or all."""
        try:
            body = orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            return _json({"error": {"message": str(error)}}, status=400)
        rid = body.get("rid") if isinstance(body, dict) else None
        everything = isinstance(body, dict) and bool(body.get("abort_all"))
        if not everything and not (isinstance(rid, str) and rid):
            return _json({"error": {"message": "Give `rid`, a string, or `abort_all`."}}, status=400)
        for driver in self.drivers:
            driver.abort("" if everything else str(rid))
        return web.Response()

    async def flush_cache(self, request: web.Request) -> web.Response:
        """POST or GET /flush_cache: 400 while requests are in progress at a rank, whose cache is then in use."""
        flushed = [driver.flush_cache() for driver in self.drivers]  # every rank that can, as SGLang does
        if all(flushed):
            return web.Response(text="Cache flushed.\n")
        return web.Response(text="Flush cache failed: requests are in progress.\n", status=400)

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics. Gauges are as of now, and not of the last report."""
        config = self.config
        text = render_metrics(config.model_name, config.engine, self._counters(), self._served)
        return web.Response(text=text, content_type="text/plain")

    async def loads(self, request: web.Request) -> web.Response:
        """GET /v1/loads."""
        clock = self.drivers[0]
        stamp = clock.wall_seconds(clock.now_seconds())
        return _json(render_loads(self.config.engine, self._counters(), stamp))

    def _counters(self) -> list[Counters]:
        return [driver.counters() for driver in self.drivers]

    async def server_info(self, request: web.Request) -> web.Response:
        """GET /server_info."""
        config = self.config
        return _json(render_server_info(config.model_name, config.engine, config.dp_size, config.time_scale))

    async def model_info(self, request: web.Request) -> web.Response:
        """GET /model_info."""
        return _json({"model_path": self.config.model_name, "is_generation": True})

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models."""
        model = {
            "id": self.config.model_name,
            "object": "model",
            "owned_by": "simulated",
            "max_model_len": self.config.engine.context_tokens,
        }
        return _json({"object": "list", "data": [model]})

    async def health(self, request: web.Request) -> web.Response:
        """GET /health and /ready: it serves."""
        return web.Response()


def _whole(sampling: Mapping[str, Any], name: str, default: int) -> int:
    value = sampling.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest(f"`{name}` must be an integer.")
    return value


def _json(value: object, status: int = 200) -> web.Response:
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return web.Response(body=body, status=status, content_type="application/json")


async def serve(config: ServerConfig) -> tuple[web.AppRunner, int]:
    """Start serving in the running event loop; the runner (`await runner.cleanup()` stops it) and the port.

    Raises ConfigError, and OSError where the port cannot be had.
    """
    server = Server(config)
    app = server.app()

    async def stop_clock(app: web.Application) -> None:
        for driver in server.drivers:
            driver.close()

    app.on_cleanup.append(stop_clock)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port, backlog=4096).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, int(runner.addresses[0][1])


async def _run(config: ServerConfig) -> None:
    runner, port = await serve(config)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(f"simulated engine on http://{config.host}:{port}", flush=True)
    await stop.wait()
    await runner.cleanup()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit code 2: a configuration that cannot be served."""
    parser = argparse.ArgumentParser(description="A simulation of an SGLang server; its figures are simulated.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file with a ServerConfig")
    path = parser.parse_args(arguments).config
    try:
        config = ServerConfig.model_validate_json(path.read_bytes())
        asyncio.run(_run(config))
    except ValidationError as error:
        first = error.errors()[0]
        print(f"{path}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}", file=sys.stderr)
        return 2
    except (ConfigError, OSError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
