"""`concur doctor` as a command: what it examines, what it prints, its exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from aiohttp import web
from typer.testing import CliRunner, Result

from concur_batch.cli.app import app
from concur_batch.doctor.finding import Finding, ok, warning
from tests.doctor.doctor_servers import MODEL, Fault, Handler, simulated, unserved

asked: list[tuple[Any, ...]] = []


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own checks have their tests; here they only note what they were asked."""
    asked.clear()

    def inspect_machine(output: Path, agents: int, *, sandboxed: bool, ray_address: str | None) -> Iterator[Finding]:
        asked.append((output, agents, sandboxed, ray_address))
        yield ok("ray", "starts")
        yield warning("disk", "little [room]", "free some")

    monkeypatch.setattr("concur_batch.cli.doctor.inspect_machine", inspect_machine)
    monkeypatch.setattr("concur_batch.doctor.engine._SETTLE_SECONDS", 0.3)


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


class Serving:
    """A simulated server on a thread of its own, since the command has an event loop of its own."""

    def __init__(self, fault: Fault | None = None) -> None:
        self._fault = fault
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)

    def __enter__(self) -> str:
        self._thread.start()
        self._context = simulated(self._fault)
        return asyncio.run_coroutine_threadsafe(self._context.__aenter__(), self._loop).result(30)

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._context.__aexit__(None, None, None), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def write_workload(directory: Path, engine: dict[str, Any], **blocks: Any) -> Path:
    (directory / "tasks.jsonl").write_text("".join(json.dumps({"id": str(n)}) + "\n" for n in range(30)))
    workload = {
        "name": "w",
        "tasks": {"file": "tasks.jsonl", "prompt": "{{ id }}", "samples": 100},
        "model": {"name": "demo", "tokenizer": str(MODEL)},
        "engine": engine,
        "output": str(directory / "out"),
        **blocks,
    }
    path = directory / "workload.yaml"
    path.write_text(yaml.safe_dump(workload))
    return path


def test_without_arguments_it_examines_the_machine() -> None:
    done = doctor()
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "machine",
        "  ok      ray: starts",
        "  warning disk: little [room]",
        "          free some",
        "1 ok, 1 warning, 0 failures",
    ]
    assert asked == [(Path("runs"), 2000, True, None)]


def test_a_server_and_a_tokenizer_by_options() -> None:
    with Serving() as url:
        done = doctor("--engine", f"{url}/", "--tokenizer", MODEL, "--ray-address", "here:1", "--json")
    assert done.exit_code == 0, done.stdout
    report = json.loads(done.stdout)
    assert (report["warnings"], report["failures"], report["ok"]) == (1, 0, len(report["findings"]) - 1)
    assert {finding["subject"] for finding in report["findings"]} == {
        "machine", "tokenizer workloads/demo_model", f"engine {url}"
    }  # fmt: skip
    assert report["findings"][-1] == {
        "subject": f"engine {url}",
        "name": "same tokenizer",
        "verdict": "ok",
        "seen": "the engine has the same numbers of tokens for 6 texts",
        "mend": "",
    }
    assert asked[0][3] == "here:1"


def test_a_failure_gives_1_and_its_mend() -> None:
    with Serving(unserved("/metrics")) as url:
        done = doctor("--engine", url, "--kind", "sglang")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    at = lines.index("  failure hit counters: not told: without them the law has no hit rate")
    assert lines[at + 1] == "          start the server with --enable-metrics"
    assert lines[-1].endswith("2 warnings, 1 failure")


def test_a_workload_says_what_to_examine(tmp_path: Path) -> None:
    with Serving() as first, Serving() as second:
        path = write_workload(tmp_path, {"kind": "sglang", "urls": [first, second]}, agent={"hosts": 4})
        done = doctor(path, "--json")
    assert done.exit_code == 0, done.stdout
    subjects = [finding["subject"] for finding in json.loads(done.stdout)["findings"]]
    assert subjects.count(f"engine {first}") == subjects.count(f"engine {second}") == 12
    assert asked == [(tmp_path / "out", 750, True, None)]


def test_a_limit_above_the_engines_context_is_a_warning(tmp_path: Path) -> None:
    with Serving() as url:
        for limit, verdict in ((4_000, "ok     "), (4_001, "warning")):
            path = write_workload(tmp_path, {"kind": "sglang", "url": url}, agent={"limits": {"context_tokens": limit}})
            done = doctor(path)
            assert done.exit_code == 0, done.stdout
            assert f"  {verdict} context: 4000 tokens, " in done.stdout


def test_agents_are_spread_over_hosts_by_default(tmp_path: Path) -> None:
    path = write_workload(tmp_path, {"kind": "simulated", "synthetic": {}}, tools={"kind": "synthetic"})
    done = doctor(path)
    assert done.exit_code == 0
    assert "  ok      served: simulated: it comes with the run" in done.stdout
    assert asked == [(tmp_path / "out", 1500, False, None)]


def test_a_server_that_the_run_launches_is_examined_by_its_url(tmp_path: Path) -> None:
    launch = {"python": "/usr/bin/python3", "model": str(MODEL)}
    path = write_workload(tmp_path, {"kind": "sglang", "launch": launch})
    done = doctor(path)
    assert done.exit_code == 0, done.output
    assert "  warning served: the run launches it" in done.stdout
    with Serving() as url:
        done = doctor(path, "--engine", url)
    assert (done.exit_code, "served" in done.stdout) == (0, False)
    assert "same tokenizer" in done.stdout


def test_the_servers_key_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: set[str | None] = set()

    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        keys.add(request.headers.get("Authorization"))
        return await handler(request) if request.headers.get("Authorization") else web.Response(status=401)

    monkeypatch.setenv("DOCTOR_KEY", "k")
    with Serving(guarded) as url:
        path = write_workload(tmp_path, {"kind": "sglang", "url": url, "api_key": "DOCTOR_KEY"})
        assert doctor(path).exit_code == 0
        assert keys == {"Bearer k"}
        assert "engine.api_key" in doctor("--engine", url).stdout
    monkeypatch.delenv("DOCTOR_KEY")
    assert doctor(path).exit_code == 2


def test_a_directory_that_is_no_model_is_a_failure(tmp_path: Path) -> None:
    done = doctor("--tokenizer", tmp_path)
    assert done.exit_code == 1
    assert "  failure files:" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "gpu-7:30000"], "not a URL"),
        (["--engine", "http://gpu-7", "--kind", "vlm"], "vllm"),
        (["--kind", "vllm"], "--engine"),
        (["no-such.yaml"], "no such file"),
    ],
)
def test_bad_input_gives_2_and_examines_nothing(arguments: list[str], said: str) -> None:
    done = doctor(*arguments)
    assert done.exit_code == 2
    assert said in done.output
    assert asked == []
