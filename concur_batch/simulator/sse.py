"""Answers as aiohttp sends them: JSON, and a stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
from aiohttp import web

from concur_batch.simulator.ask import BadRequest


def json_response(value: object, status: int = 200) -> web.Response:
    """A JSON answer; arrays of ids may be in it as they are."""
    return web.Response(body=_dump(value), status=status, content_type="application/json")


async def stream_response(request: web.Request, events: AsyncIterator[object]) -> web.StreamResponse:
    """Send each event as it comes, then `[DONE]`. A client that has gone ends it as if the handler were cancelled."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    try:
        async for event in events:
            await response.write(b"data: " + _dump(event) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
    except ConnectionResetError:
        pass  # nobody is there to be told
    return response


async def read_object(request: web.Request) -> dict[str, Any]:
    """The body. Raises BadRequest where it is not a JSON object."""
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    return body


def _dump(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
