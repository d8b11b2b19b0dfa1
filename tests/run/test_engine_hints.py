"""What `engine.priorities` and `engine.sessions` send, seen by a simulated SGLang that notes every request."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.doctor.doctor_servers import Handler, simulated
from tests.run.command import finished_run, synthetic_workload


async def test_a_run_tells_the_engine_priorities_and_sessions(tmp_path: Path) -> None:
    sent: list[dict[str, Any]] = []
    closed: list[str] = []

    async def noting(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/generate":
            sent.append(await request.json())
        elif request.path == "/close_session":
            closed.append((await request.json())["session_id"])
            return web.Response()
        return await handler(request)

    async with simulated(noting) as url:
        engine = {"kind": "sglang", "url": url, "priorities": True, "sessions": True}
        tasks = {"file": "tasks.jsonl", "prompt": "Task {{ id }}\n\nWork.", "priority": "urgency"}
        workload = synthetic_workload(tmp_path, 0, engine=engine, tasks=tasks)
        (tmp_path / "tasks.jsonl").write_text(
            "".join(json.dumps({"id": str(n), "urgency": n}) + "\n" for n in range(4))
        )
        summary, run = await asyncio.to_thread(finished_run, workload)
    assert summary["finished"] == 4
    of_agents = [body for body in sent if not body["rid"].startswith("probe")]
    assert len(of_agents) == run.table("turns").num_rows
    sessions = {body["session_id"]: body["priority"] for body in of_agents}
    assert sorted(sessions.values()) == [0, 1, 2, 3]
    assert sorted(closed) == sorted(sessions)
    assert all(body["rid"].startswith(body["session_id"]) for body in of_agents)
