"""What the clients of all inference servers share: one HTTP session, retries, and whether the server is up.

aiohttp is used since httpx collapses above some 64 requests in flight.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import aiohttp
import numpy as np
import orjson

from concur_batch.engine.protocol import (
    ContextOverflow,
    EngineBusy,
    EngineDown,
    EngineError,
    Generation,
    GenerationRequest,
    Reading,
    RequestRejected,
)

READ_TIMEOUT = aiohttp.ClientTimeout(total=10)
# How long an engine may ask for patience (Retry-After) and be given it; beyond, the client's own waits must do.
_MOST_PATIENCE_SECONDS = 60.0
# SGLang and vLLM close a connection that has rested for 5 s: one that has rested nearly so long is not used again, or a
# request could be sent into its end.
_REST_SECONDS = 4.0
_SIGNALS = {"locked_tokens": "KV usage", "evictable_tokens": "occupancy", "device_hit_tokens_total": "hit rate"}


class HttpEngine(ABC):
    """One server. Must be made on the event loop that uses it.

    `request_seconds` bounds one generation, its queueing in the engine included; `retries` is how often a failed one
    is sent again. Repeating is safe: a generation has no effect but its answer, and each try has a rid of its own, so
    that a late answer to an earlier try cannot be taken for this one's. No two clients make the same rid either: a
    server takes one only once at a time, and aborts by it. A server that is down is not waited for here.
    """

    server: ClassVar[str]
    """Its name, for messages."""
    health_paths: ClassVar[tuple[str, ...]]
    """What is asked for whether it takes requests: the first that is served."""

    def __init__(self, url: str, request_seconds: float, retries: int, api_key: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=request_seconds, sock_connect=30)
        self._retries = retries
        self._name = secrets.token_hex(4)
        self._serial = itertools.count()
        self._asking: asyncio.Task[bool] | None = None
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session = self._connect()

    async def generate(self, request: GenerationRequest) -> Generation:
        """See `Engine.generate`."""
        problem, wait_seconds = "", 0.0
        for tries in range(1, self._retries + 2):
            if tries > 1:  # full jitter, so that thousands of agents do not return to an engine at once
                await asyncio.sleep(wait_seconds + random.uniform(0, min(30.0, 0.5 * 2**tries)))
            rid = f"{request.rid}-{self._name}{next(self._serial):08d}"
            try:
                return await self._try(rid, request, tries)
            except RequestRejected:
                raise
            except asyncio.CancelledError:
                await asyncio.shield(self._abort(rid))
                raise
            except (aiohttp.ClientError, EngineError) as error:
                problem = str(error) or type(error).__name__
                wait_seconds = error.wait_seconds if isinstance(error, EngineBusy) else 0.0
            except TimeoutError:
                problem = f"no answer within {self._timeout.total:.0f} s"
                await self._abort(rid)
            except OSError as error:
                problem = str(error) or type(error).__name__
            # Whatever it looked like: where no request is taken now, another try would only be wasted.
            if not await self._is_up():
                raise EngineDown(f"{self._url} takes no requests: {problem}")
        raise EngineError(f"{self._url}: {problem} ({self._retries + 1} tries)")

    async def ready(self) -> bool:
        """Whether the server takes requests now; never raises for a server that is not there yet."""
        try:
            for path in self.health_paths:
                async with self._session.get(f"{self._url}{path}", timeout=READ_TIMEOUT) as response:
                    if response.status != 404:
                        return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass
        return False

    async def end_session(self, session: str) -> None:  # noqa: B027
        """See `Engine.end_session`; nothing to do where requests do not carry it."""

    async def hang_up(self) -> None:
        """Break off all requests under way: they are taken for ones whose server is gone, and fail as such if it is."""
        session, self._session = self._session, self._connect()
        await session.close()

    async def close(self) -> None:
        await self._session.close()

    async def _wake(self, ranks: Sequence[int], sampling: Mapping[str, Any]) -> list[Generation]:
        """Generate one token a dp rank, with the workload's sampling parameters: what is refused is known then, and
        some gauges appear with a rank's first batch only."""
        prompt = np.zeros(2, dtype=np.int32)
        pinned = list(ranks) if len(ranks) > 1 else [None]
        return [
            await self.generate(GenerationRequest("probe", prompt, 1, 0, sampling, dp_rank=rank)) for rank in pinned
        ]

    @abstractmethod
    async def _try(self, rid: str, request: GenerationRequest, tries: int) -> Generation:
        """Send the request once, under this rid. Raises RequestRejected where another try would not help."""

    async def _abort(self, rid: str) -> None:  # noqa: B027
        """Have the engine drop a request; nothing to do where it drops those whose connection is closed."""

    async def _context_tokens(self) -> int | None:
        """The served model's context, as `/v1/models` tells it."""
        try:
            models = (await self._get_json("/v1/models")).get("data") or [{}]
            return int(models[0]["max_model_len"])
        except (EngineError, KeyError, TypeError, ValueError):
            return None

    async def _is_up(self) -> bool:
        """`ready`, where all who ask at the same time share one question."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self.ready())
        return await asyncio.shield(self._asking)

    def _connect(self) -> aiohttp.ClientSession:
        # limit=0: thousands of agents have a request in flight; the engine queues them, not our pool.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_REST_SECONDS)
        return aiohttp.ClientSession(connector=connector, headers=self._headers)

    async def _post(self, path: str, fields: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and body of the answer; arrays of numpy may stand in `fields`. Raises EngineBusy."""
        body = orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = {"Content-Type": "application/json", **headers}
        async with self._session.post(
            f"{self._url}{path}", data=body, headers=headers, timeout=self._timeout
        ) as response:
            text = await response.read()
            wait_seconds = _seconds(response.headers.get("Retry-After"))
            if response.status in (429, 503) and wait_seconds <= _MOST_PATIENCE_SECONDS:
                raise EngineBusy(str(failure(response.status, error_text(text), ())), wait_seconds)
            return response.status, text

    async def _get_text(self, path: str) -> str | None:
        """None where the path is not served; raises EngineError for any other failure."""
        try:
            async with self._session.get(f"{self._url}{path}", timeout=READ_TIMEOUT) as response:
                if response.status in (401, 403):
                    raise EngineError(f"{self._url}{path}: HTTP {response.status}: give its key as engine.api_key")
                if response.status not in (200, 404):
                    raise EngineError(f"{self._url}{path}: HTTP {response.status}")
                return await response.text() if response.status == 200 else None
        except aiohttp.ClientConnectorError as error:
            reason = error.os_error.strerror or str(error.os_error)
            raise EngineError(f"no server answers at {self._url} ({reason}): start it, or mend engine.url") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineError(f"{self._url}{path}: {str(error) or type(error).__name__}") from None

    async def _get_json(self, path: str) -> dict[str, Any]:
        text = await self._get_text(path)
        if text is None:
            raise EngineError(f"{self._url}{path} is not served: is this a {self.server} server?")
        try:
            return dict(orjson.loads(text))
        except (ValueError, TypeError):
            raise EngineError(f"{self._url}{path} is no JSON object: is this a {self.server} server?") from None


def parse_answer(text: bytes) -> dict[str, Any]:
    """The JSON object of a body; raises EngineError where it is none."""
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"the answer is not JSON: {error}") from None
    if not isinstance(answer, dict):
        raise EngineError("the answer is no JSON object")
    return answer


def error_text(text: bytes) -> str:
    """What the body of an error says: engines put a JSON object there, a proxy does not. A code that is a word follows
    in parentheses."""
    try:
        answer = orjson.loads(text)
        error = answer["error"] if isinstance(answer.get("error"), dict) else answer
        code = error.get("code")
        return str(error["message"]) + (f" ({code})" if isinstance(code, str) else "")
    except (ValueError, KeyError, AttributeError):
        return text.decode(errors="replace")


def failure(status: int, message: str, overflow: Iterable[str]) -> EngineError:
    """The error for an answer that is none: ContextOverflow where the message holds one of the marks of `overflow`,
    RequestRejected for what the client is to blame for, EngineError for what may go well the next time."""
    first_line = " ".join(message.split())[:300]
    if any(mark in message for mark in overflow):
        return ContextOverflow(first_line)
    rejected = 400 <= status < 500 and status not in (408, 429)
    return (RequestRejected if rejected else EngineError)(f"HTTP {status}: {first_line}")


def missing_signals(readings: Iterable[Reading]) -> tuple[str, ...]:
    """What some KV pool does not tell, for `EngineInfo.missing_signals`."""
    told = list(readings)
    return tuple(name for field, name in _SIGNALS.items() if any(getattr(reading, field) is None for reading in told))


def _seconds(header: str | None) -> float:
    """How long a `Retry-After` asks to wait; endless where it is none, or names a date."""
    try:
        return max(0.0, float(header or "inf"))
    except ValueError:
        return math.inf
