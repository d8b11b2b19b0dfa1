"""`concur serve-sim`: the command over the simulated server."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from simulated_server import MODEL
from typer.testing import CliRunner

from concur_batch.cli.app import app
from concur_batch.workload.catalogue import load_catalogue

SCRIPT = {"id": "t1", "variants": [[{"think": "From the script.", "calls": []}]]}


def workload_file(directory: Path, **engine: Any) -> Path:
    (directory / "scripts.jsonl").write_text(json.dumps(SCRIPT) + "\n")
    (directory / "tasks.jsonl").write_text('{"id": "t1"}\n')
    workload = {
        "name": "served",
        "tasks": {"file": "tasks.jsonl", "prompt": "Task {{ id }}"},
        "model": {"name": "demo", "tokenizer": str(MODEL)},
        "engine": {"kind": "simulated", "script": "scripts.jsonl", **engine},
    }
    path = directory / "workload.yaml"
    path.write_text(yaml.safe_dump(workload))
    return path


async def ask(session: aiohttp.ClientSession, url: str, content: str) -> str:
    body = {"messages": [{"role": "user", "content": content}]}
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        return str((await response.json())["choices"][0]["message"]["content"])


@pytest.mark.parametrize("of_workload", [True, False])
async def test_it_serves_until_it_is_interrupted(tmp_path: Path, of_workload: bool) -> None:
    arguments = ["--port", "0", "--pool-tokens", "9000", "--model-name", "mine", "--time-scale", "50"]
    if of_workload:
        arguments.insert(0, str(workload_file(tmp_path, page_size=2)))
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("concur")), "serve-sim", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip().removeprefix("simulated engine on ")
    notes = b"".join([await process.stdout.readline() for _ in range(3)]).decode()
    assert "mine" in notes and "9000 tokens" in notes and "simulated" in notes
    async with aiohttp.ClientSession() as session:
        said = await ask(session, url, "Task t1")
        assert said.startswith("From the script." if of_workload else "This answer is simulated:")
        async with session.get(f"{url}/get_server_info") as response:
            info = await response.json()
        assert (info["version"], info["served_model_name"], info["time_scale"]) == ("simulated", "mine", 50)
        assert (info["max_total_num_tokens"], info["page_size"]) == (9_000, 2 if of_workload else 1)
        async with session.get(f"{url}/health_generate") as response:
            assert response.status == 200
        # A stream that nobody would wait for does not hold it up.
        body = {"prompt": "a", "max_tokens": 8_000, "ignore_eos": True, "stream": True}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            await response.content.readline()
            process.send_signal(2)
            assert await process.wait() == 0
    assert await process.communicate() == (b"", b"")


async def test_a_real_engines_workload_is_served_on_the_hardware_that_it_names() -> None:
    """Qwen3-32B on eight H100: the pool and the costs of the catalogue, under any client."""
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("concur")), "serve-sim", "workloads/paper/qwen3-32b-tp8.yaml"),
        *("--port", "0", "--time-scale", "50", "--page-size", "16"),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip().removeprefix("simulated engine on ")
        async with aiohttp.ClientSession() as session:
            assert (await ask(session, url, "Hello")).startswith("This answer is simulated:")
            async with session.get(f"{url}/get_server_info") as response:
                info = await response.json()
    finally:
        process.terminate()
        assert await process.wait() == 0
    assert (info["served_model_name"], info["page_size"], info["time_scale"]) == ("Qwen/Qwen3-32B", 16, 50)
    deployment = load_catalogue().deployment("qwen3-32b", "h100", tp=8)
    assert info["max_total_num_tokens"] == deployment.pool_tokens > 1_000_000


@pytest.mark.parametrize(
    ("arguments", "engine", "message"),
    [
        (["--pool-tokens", "5"], None, "`pool_tokens` and `context_tokens` leave no room for a prompt"),
        (["--time-scale", "0"], None, "--time-scale: Input should be greater than 0"),
        (["--tokenizer", "/nowhere"], None, "/nowhere/tokenizer.json: no such file"),
        (["--tokenizer", "/nowhere"], {}, "model.tokenizer"),
        (["--model-name", 'a"b'], None, "--model-name: "),
        (
            [],
            {"kind": "sglang", "url": "http://a:1", "script": None},
            "engine.kind: is sglang, a real server; add `simulate",
        ),
        ([], {"pool": 5}, "engine.pool"),
        (["nowhere.yaml"], None, "nowhere.yaml"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    tmp_path: Path, arguments: list[str], engine: dict[str, Any] | None, message: str
) -> None:
    if engine is not None:
        fields = {key: value for key, value in engine.items() if value is not None}
        path = workload_file(tmp_path, **fields)
        if "script" in engine:
            path.write_text(path.read_text().replace("  script: scripts.jsonl\n", ""))
        arguments = [str(path), *arguments]
    result = CliRunner().invoke(app, ["serve-sim", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr and len(result.stderr.splitlines()) == 1


async def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    result = await asyncio.to_thread(CliRunner().invoke, app, ["serve-sim", "--port", str(port)])
    server.close()
    assert result.exit_code == 2 and "address already in use" in result.stderr
