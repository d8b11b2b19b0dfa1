"""An engine that is no bottleneck: it answers `/generate` at once with a ready reply, tens of thousands a second.

What the scale benchmark measures is then the orchestrator. It does no caching and no batching, so it says nothing of
them; the simulated engine does.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import cast

import orjson
import uvloop
from tokenizers import Tokenizer

_INFO = orjson.dumps({"version": "mock", "max_total_num_tokens": 10**9, "page_size": 1, "context_length": 10**6})


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests on it come one after the other."""

    def __init__(self, call: list[int], submit: list[int], turns: int) -> None:
        self._replies = (call, submit)
        self._turns = turns
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class is none of asyncio's

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:head_end]
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            end = head_end + 4 + length
            if len(self._buffer) < end:
                return
            body, self._buffer = self._buffer[head_end + 4 : end], self._buffer[end:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        status, answer = b"200 OK", _INFO
        if head.startswith(b"POST /generate"):
            rid = body[8 : body.index(b'"', 8)].decode()
            turn = rid.split("-")[-2]
            reply = self._replies[turn.isdigit() and int(turn) >= self._turns - 1]
            prompt_tokens = body[: body.index(b"]")].count(b",")  # the comma after the rid stands for the last id
            answer = orjson.dumps(
                {
                    "text": "",
                    "output_ids": reply,
                    "meta_info": {
                        "id": rid,
                        "finish_reason": {"type": "stop"},
                        "prompt_tokens": prompt_tokens,
                        "completion_tokens": len(reply),
                        "cached_tokens": 0,
                    },
                }
            )
        elif not head.startswith(b"GET /server_info"):
            status, answer = b"404 Not Found", b""
        self._transport.write(
            b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\nContent-Length: "
            + str(len(answer)).encode() + b"\r\n\r\n" + answer
        )  # fmt: skip


async def serve(tokenizer: Path, turns: int, tool: str, arguments: str) -> None:
    """Serve on a free port of this machine until SIGTERM; prints the address.

    Every turn of an agent but its last calls `tool` with `arguments`, a JSON object.
    """
    encoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))

    def reply(name: str, arguments: str) -> list[int]:
        call = f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call><|im_end|>'
        return list(encoder.encode(f"One more step of the work is due.\n{call}", add_special_tokens=False).ids)

    call, submit = reply(tool, arguments), reply("submit", '{"answer": "done"}')
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(call, submit, turns), "127.0.0.1", 0, backlog=4096)
    print(f"mock engine on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
