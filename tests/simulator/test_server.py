"""The server over real HTTP: SGLang's routes, shapes and counters."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from simulated_server import ENGINE, MODEL, SLOW, TOKENIZER, served

from concur_batch.engine.metrics import make_readings
from concur_batch.simulator.config import EngineConfig, HiCacheConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.server import ConfigError, ServerConfig, main, serve
from concur_batch.simulator.synthetic import SyntheticScript

PROMPT = TOKENIZER.encode("<|im_start|>user\nTask t1<|im_end|>\n<|im_start|>assistant\n").ids


class Client:
    """A minimal client of one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def generate(self, ids: list[int], expect: int = 200, **fields: Any) -> dict[str, Any]:
        sampling = {"max_new_tokens": 200, **fields.pop("sampling", {})}
        body = {"input_ids": ids, "sampling_params": sampling, **fields}
        async with self.session.post(f"{self.url}/generate", json=body) as response:
            answer = await response.json()
            assert response.status == expect, answer
            return dict(answer)

    async def metrics(self) -> dict[str, float]:
        """Values by name, with the mode where there is one."""
        async with self.session.get(f"{self.url}/metrics") as response:
            text = await response.text()
        return {
            sample.name.removeprefix("sglang:")
            + "".join(f":{sample.labels[k]}" for k in ("mode",) if k in sample.labels): (sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def wait_until(self, name: str, value: float) -> None:
        """Poll a metric; the test's own timeout ends a wait in vain."""
        while (await self.metrics())[name] != value:  # noqa: ASYNC110 (the server could be another process)
            await asyncio.sleep(0.01)


@asynccontextmanager
async def server(cost: CostModel | None = None, **fields: Any) -> AsyncIterator[Client]:
    source = {} if "scripts" in fields else {"synthetic": SyntheticScript(turns=(3, 3))}
    async with served(cost, **source, **fields) as url, aiohttp.ClientSession() as session:
        yield Client(session, url)


async def test_the_second_turn_finds_the_first_in_the_cache_and_the_counters_agree() -> None:
    async with server() as client:
        history = list(PROMPT)
        answers = []
        for turn in range(4):
            answer = await client.generate(history, rid=f"agent-{turn}|")
            answers.append(answer)
            history += [*answer["output_ids"], *TOKENIZER.encode("\n").ids, *PROMPT]
        metas = [answer["meta_info"] for answer in answers]
        for before, after in pairwise(metas):
            # All but the last output token, whose KV was never computed.
            assert after["cached_tokens"] == before["prompt_tokens"] + before["completion_tokens"] - 1
        meta = metas[1]
        assert meta["id"] == "agent-1|"
        assert meta["finish_reason"] == {"type": "stop", "matched": TOKENIZER.token_to_id("<|im_end|>")}
        assert meta["completion_tokens"] == len(answers[1]["output_ids"])
        assert meta["cached_tokens_details"] == {"device": meta["cached_tokens"], "host": 0}
        assert (meta["num_retractions"], meta["prompt_tokens"] > meta["cached_tokens"] > 0) == (0, True)
        metrics = await client.metrics()
        cached = sum(m["cached_tokens"] for m in metas)
        assert metrics["prefill_effective_tokens_total:device_hit"] == cached
        assert metrics["prefill_effective_tokens_total:input"] == sum(m["prompt_tokens"] for m in metas) - cached
        assert metrics["prefill_effective_tokens_total:host_hit"] == 0
        assert metrics["realtime_tokens_total:decode"] == sum(m["completion_tokens"] - 1 for m in metas)
        assert metrics["generation_tokens_total"] == sum(m["completion_tokens"] for m in metas)
        assert metrics["kv_used_tokens"] == metrics["num_running_reqs"] == 0
        occupied = metrics["kv_evictable_tokens"]
        assert occupied == metas[-1]["prompt_tokens"] + metas[-1]["completion_tokens"] - 1
        assert metrics["kv_available_tokens"] + occupied == metrics["max_total_num_tokens"] == 20_000


async def test_sampling_parameters() -> None:
    async with server() as client:
        cut = await client.generate(PROMPT, sampling={"max_new_tokens": 3})
        assert cut["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
        assert len(cut["output_ids"]) == 3
        forced = await client.generate(PROMPT, sampling={"max_new_tokens": 150, "ignore_eos": True})
        assert len(forced["output_ids"]) == 150
        one, two = [await client.generate(PROMPT, sampling={"sampling_seed": 5}) for _ in range(2)]
        other = await client.generate(PROMPT, sampling={"sampling_seed": 6})
        assert one["output_ids"] == two["output_ids"] != other["output_ids"]


async def test_a_scripted_agent_over_http(tmp_path: Path) -> None:
    script = {"id": "t1", "variants": [[{"think": "I look.", "calls": [{"name": "list_files", "arguments": {}}]}]]}
    (tmp_path / "scripts.jsonl").write_text(json.dumps(script))
    async with server(scripts=tmp_path / "scripts.jsonl") as client:
        answer = await client.generate(PROMPT)
        assert answer["text"] == 'I look.\n<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>'
        assert TOKENIZER.decode(answer["output_ids"]) == answer["text"]
        assert (await client.generate(PROMPT, sampling={"max_new_tokens": 2}))["text"] == "I look"
        body = {"text": TOKENIZER.decode(PROMPT, skip_special_tokens=False), "sampling_params": {}}
        async with client.session.post(f"{client.url}/generate", json=body) as response:
            assert (await response.json())["output_ids"] == answer["output_ids"]


async def test_abort_by_prefix_frees_what_the_request_held() -> None:
    async with server(SLOW) as client:
        forced = {"max_new_tokens": 3_000, "ignore_eos": True}
        tasks = [
            asyncio.create_task(client.generate(PROMPT, rid=rid, sampling=forced)) for rid in ("a-1|", "a-2|", "b|")
        ]
        await client.wait_until("num_running_reqs", 3)
        assert (await client.metrics())["kv_used_tokens"] > len(PROMPT)
        async with client.session.post(f"{client.url}/abort_request", json={"rid": "a-"}) as response:
            assert response.status == 200
        for answer in (await tasks[0], await tasks[1]):
            assert answer["meta_info"]["finish_reason"]["type"] == "abort"
            assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) > 0
        assert (await client.metrics())["num_running_reqs"] == 1
        assert not tasks[2].done()
        async with client.session.post(f"{client.url}/flush_cache") as response:
            assert response.status == 400, "in use"
        async with client.session.post(f"{client.url}/abort_request", json={"rid": "", "abort_all": True}) as response:
            assert response.status == 200
        await tasks[2]
        metrics = await client.metrics()
        assert (metrics["num_running_reqs"], metrics["kv_used_tokens"]) == (0, 0)
        assert metrics["num_aborted_requests_total"] == 3
        async with client.session.post(f"{client.url}/flush_cache") as response:
            assert response.status == 200
        assert (await client.metrics())["kv_evictable_tokens"] == 0


async def test_a_client_that_disconnects_aborts_its_request_and_may_come_again() -> None:
    async with server(SLOW) as client:
        forced = {"max_new_tokens": 3_000, "ignore_eos": True}
        task = asyncio.create_task(client.generate(PROMPT, rid="same|", sampling=forced))
        await client.wait_until("num_running_reqs", 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again = await client.generate(PROMPT, rid="same|", sampling={"max_new_tokens": 2})
        assert again["meta_info"]["finish_reason"]["type"] == "length"
        await client.wait_until("num_running_reqs", 0)
        assert (await client.metrics())["kv_used_tokens"] == 0


async def test_many_clients_that_disconnect_leave_nothing() -> None:
    async with server(SLOW) as client:
        forced = {"max_new_tokens": 200, "ignore_eos": True}
        tasks = [asyncio.create_task(client.generate([7, index], sampling=forced)) for index in range(80)]
        await client.wait_until("num_running_reqs", 80)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.wait_until("num_running_reqs", 0)
        assert (await client.metrics())["kv_used_tokens"] == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"input_ids": [5] * 4_000},
            "The input (4000 tokens) is longer than the model's context length (4000 tokens).",
        ),
        ({"input_ids": [5] * 3_900, "sampling_params": {"max_new_tokens": 101}}, "Requested token count exceeds"),
        ({"input_ids": [5] * 1_000, "sampling_params": {"max_new_tokens": 1}}, "exceeds the maximum allowed length"),
        ({"input_ids": [5], "sampling_params": {"n": 2}}, "does not support `n` above 1"),
        ({"input_ids": [5], "sampling_params": {"stop": [5]}}, "`stop` must be"),
        ({"input_ids": [5], "sampling_params": {"json_schema": "{}"}}, "does not support `json_schema`"),
        ({"input_ids": [5], "return_logprob": True}, "does not support `return_logprob`"),
        ({"input_ids": [[5], [6]]}, "must be a list of integers"),
        ({"input_ids": [5.5]}, "must be a list of integers"),
        ({"input_ids": [-1]}, "within the vocabulary"),
        ({"input_ids": [6144]}, "within the vocabulary"),
        ({"input_ids": [2**40]}, "must be a list of integers"),
        ({"input_ids": []}, "The prompt is empty."),
        ({"input_ids": [5], "text": "a"}, "exactly one of"),
        ({}, "exactly one of"),
        ({"input_ids": [5], "rid": ["a"]}, "`rid` must be a string"),
        ({"input_ids": [5], "sampling_params": [{}]}, "`sampling_params` must be an object"),
        ({"input_ids": [5], "sampling_params": {"max_new_tokens": "9"}}, "`max_new_tokens` must be an integer"),
        ({"input_ids": [5], "sampling_params": {"max_new_tokens": 0}}, "max_new_tokens must be at least 1"),
        ([], "must be a JSON object"),
    ],
)
async def test_what_is_refused(body: Any, message: str) -> None:
    async with server(
        engine=EngineConfig(pool_tokens=900 if "maximum allowed" in message else 20_000, context_tokens=4_000)
    ) as client:
        async with client.session.post(f"{client.url}/generate", json=body) as response:
            assert response.status == 400
            assert message in (await response.json())["error"]["message"]
        await client.generate(PROMPT)  # and it goes on serving


async def test_bodies_that_are_not_json_and_rids_in_use() -> None:
    async with server(SLOW) as client:
        for path in ("/generate", "/abort_request"):
            async with client.session.post(client.url + path, data=b"{") as response:
                assert response.status == 400
        async with client.session.post(f"{client.url}/abort_request", json={"rid": ""}) as response:
            assert response.status == 400, "an empty prefix would abort everything"
        task = asyncio.create_task(client.generate(PROMPT, rid="a|"))
        await client.wait_until("num_running_reqs", 1)
        assert "Duplicate" in (await client.generate(PROMPT, expect=400, rid="a|"))["error"]["message"]
        task.cancel()


async def test_what_a_probe_asks() -> None:
    async with server(SLOW, time_scale=2.0) as client:
        task = asyncio.create_task(client.generate(PROMPT, sampling={"max_new_tokens": 3_000, "ignore_eos": True}))
        await client.wait_until("num_running_reqs", 1)
        stamps = []
        for _ in range(2):
            async with client.session.get(f"{client.url}/v1/loads?include=core") as response:
                (rank,) = (await response.json())["loads"]
            stamps.append(rank["timestamp"])
        assert stamps[1] > stamps[0]
        assert rank["num_running_reqs"] == 1 and rank["num_waiting_reqs"] == 0
        assert 0 < rank["num_used_tokens"] <= rank["num_total_tokens"] < rank["max_total_num_tokens"] == 20_000
        assert rank["token_usage"] == round(rank["num_used_tokens"] / 20_000, 4)
        async with client.session.get(f"{client.url}/server_info") as response:
            info = await response.json()
        assert (info["max_total_num_tokens"], info["context_length"], info["version"]) == (20_000, 4_000, "simulated")
        for path in ("/health", "/ready", "/model_info", "/get_model_info", "/v1/models"):
            async with client.session.get(client.url + path) as response:
                assert response.status == 200
        task.cancel()


def turn(ids: list[int], answer: dict[str, Any]) -> list[int]:
    return [*ids, *answer["output_ids"], *PROMPT]


async def test_every_dp_rank_has_a_pool_and_a_tree_of_its_own() -> None:
    async with server(dp_size=2) as client:
        first = await client.generate(PROMPT, routed_dp_rank=1)
        history = turn(PROMPT, first)
        assert first["meta_info"]["dp_rank"] == 1
        assert (await client.generate(history, routed_dp_rank=0))["meta_info"]["cached_tokens"] == 0
        assert (await client.generate(history, routed_dp_rank=1))["meta_info"]["cached_tokens"] > len(PROMPT)
        async with client.session.get(f"{client.url}/metrics") as response:
            metrics = await response.text()
        async with client.session.get(f"{client.url}/v1/loads") as response:
            loads = await response.json()
        readings = make_readings(metrics, loads, 0.0)
        assert list(readings) == [0, 1]
        assert readings[0].device_hit_tokens_total == 0
        assert readings[1].device_hit_tokens_total == len(history) - len(PROMPT) - 1
        assert {reading.pool_tokens for reading in readings.values()} == {20_000}
        assert all(reading.evicted_tokens_total == 0 for reading in readings.values())
        async with client.session.get(f"{client.url}/server_info") as response:
            info = await response.json()
        assert (info["dp_size"], len(info["internal_states"])) == (2, 2)
        async with client.session.post(f"{client.url}/flush_cache") as response:
            assert response.status == 200
        for rank in (0, 1):
            assert (await client.generate(history, routed_dp_rank=rank))["meta_info"]["cached_tokens"] == 0


async def test_requests_that_name_no_rank_take_turns_and_a_wrong_rank_is_refused() -> None:
    async with server(dp_size=3) as client:
        answers = [await client.generate(PROMPT) for _ in range(6)]
        assert [answer["meta_info"]["dp_rank"] for answer in answers] == [0, 1, 2, 0, 1, 2]
        for rank in (-1, 3, "1"):
            answer = await client.generate(PROMPT, expect=400, routed_dp_rank=rank)
            assert "out of range [0, 3)" in answer["error"]["message"]


async def test_abort_reaches_every_rank_and_a_busy_rank_refuses_a_flush() -> None:
    async with server(SLOW, dp_size=2) as client:
        forced = {"max_new_tokens": 3_000, "ignore_eos": True}
        tasks = [
            asyncio.create_task(client.generate(PROMPT, rid=f"a-{rank}|", sampling=forced, routed_dp_rank=rank))
            for rank in (0, 1)
        ]
        while [entry["num_running_reqs"] for entry in await loads_of(client)] != [1, 1]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with client.session.post(f"{client.url}/abort_request", json={"rid": "a-0"}) as response:
            assert response.status == 200
        assert (await tasks[0])["meta_info"]["finish_reason"]["type"] == "abort"
        async with client.session.post(f"{client.url}/flush_cache") as response:
            assert response.status == 400
        async with client.session.post(f"{client.url}/abort_request", json={"abort_all": True}) as response:
            assert response.status == 200
        assert (await tasks[1])["meta_info"]["finish_reason"]["type"] == "abort"


async def loads_body(client: Client) -> dict[str, Any]:
    async with client.session.get(f"{client.url}/v1/loads") as response:
        return dict(await response.json())


async def loads_of(client: Client) -> list[dict[str, Any]]:
    return list((await loads_body(client))["loads"])


async def test_the_clock_is_scaled() -> None:
    """20 decode steps of one simulated hour each, at 36,000 simulated seconds a real one: 0.1 s a step."""
    async with server(CostModel(0.0, 0.0, 3600.0, 0.0, 0.0), time_scale=36_000.0) as client:
        answer = await client.generate(PROMPT, sampling={"max_new_tokens": 6, "ignore_eos": True})
        assert answer["meta_info"]["e2e_latency"] == pytest.approx(0.5)
        assert answer["meta_info"]["queue_time"] == 0.0


async def test_thousands_of_connections_at_once() -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with server(
        CostModel(decode_step_seconds=0.02), engine=EngineConfig(pool_tokens=400_000, context_tokens=4_000)
    ) as client:
        async with aiohttp.ClientSession(connector=connector) as session:
            many = Client(session, client.url)
            forced = {"max_new_tokens": 40, "ignore_eos": True}
            tasks = [many.generate([5, index], sampling=forced) for index in range(1_500)]
            answers = await asyncio.gather(*tasks)
        assert all(len(answer["output_ids"]) == 40 for answer in answers)
        assert (await client.metrics())["num_requests_total"] == 1_500


def config_file(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "server.json"
    base = {"engine": {"pool_tokens": 1000, "context_tokens": 500}, "tokenizer": str(MODEL), "synthetic": {}}
    path.write_text(json.dumps({**base, **fields}))
    return path


async def test_a_process_of_its_own_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "concur_batch.simulator.server", "--config", str(config_file(tmp_path))]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode().strip()
    url = line.removeprefix("simulated engine on ")
    async with aiohttp.ClientSession() as session:
        assert (await Client(session, url).generate(PROMPT))["output_ids"]
    process.terminate()
    assert await process.wait() == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"poort": 1}, "poort: Extra inputs are not permitted"),
        ({"engine": {"pool_tokens": 0}}, "engine.pool_tokens: Input should be greater than or equal to 1"),
        ({"engine": {"pool_tokens": 9, "pages": 1}}, "engine.pages: "),
        ({"synthetic": {"turn": [1, 2]}}, "synthetic.turn: "),
        ({"synthetic": {"turns": [3, 2]}}, "`turns` must be a range"),
        ({"tokenizer": "/nowhere"}, "/nowhere/tokenizer.json: no such file"),
        ({"synthetic": None}, "exactly one of `scripts`, `synthetic` and `chat`"),
        ({"synthetic": None, "scripts": "/nowhere.jsonl"}, "No such file"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], message: str
) -> None:
    assert main(["--config", str(config_file(tmp_path, **fields))]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert message in errors and len(errors.splitlines()) == 1


async def test_a_port_in_use_is_told() -> None:
    async with server() as client:
        port = int(client.url.rpartition(":")[2])
        config = ServerConfig(engine=ENGINE, tokenizer=MODEL, synthetic=SyntheticScript(), port=port)
        with pytest.raises(OSError, match="address already in use"):
            await serve(config)


async def test_scripts_that_are_wrong_are_told(tmp_path: Path) -> None:
    (tmp_path / "scripts.jsonl").write_text('{"id": "a"}\n')
    with pytest.raises(ConfigError, match=r"scripts\.jsonl: line 1: variants: Field required"):
        await serve(ServerConfig(engine=ENGINE, tokenizer=MODEL, scripts=tmp_path / "scripts.jsonl"))


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_closed_session_makes_room_before_others(method: str) -> None:
    """Three prompts of 400 tokens in a pool of 1,000: the third takes the place of the second, though it is newer."""
    engine = EngineConfig(pool_tokens=1_000, context_tokens=4_000, sessions=True)
    async with server(engine=engine, dp_size=2) as client:
        prompts = {session: [start, *range(1000, 1400)] for session, start in (("a", 7), ("b", 8), ("c", 9))}

        async def cached_tokens(session: str) -> int:
            fields = {"sampling": {"max_new_tokens": 2}, "session_id": session, "routed_dp_rank": 1}
            answer = await client.generate(prompts[session], **fields)
            return int(answer["meta_info"]["cached_tokens"])

        async def close(**body: object) -> int:
            async with client.session.request(method, f"{client.url}/close_session", json=body) as response:
                return response.status

        assert [await cached_tokens(session) for session in "ab"] == [0, 0]
        assert [await close(session_id=session) for session in ("b", "nobody")] == [200, 200]
        assert [await cached_tokens(session) for session in "cab"] == [0, 400, 0]
        assert [await close(), await close(session_id=7)] == [400, 400]
        for wrong in ({"session_id": 7}, {"session_params": {"id": "a"}}):
            await client.generate(prompts["a"], expect=400, **wrong)
        async with client.session.get(f"{client.url}/server_info") as response:
            assert (await response.json())["enable_session_radix_cache"] is True


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
async def test_openais_routes_take_a_session_too(route: str) -> None:
    engine = EngineConfig(pool_tokens=1_000, context_tokens=4_000, sessions=True)
    async with server(engine=engine) as client:

        async def cached_tokens(word: str, session: str | None) -> int:
            text = f"{word} {'x y ' * 200}"
            said = {"messages": [{"role": "user", "content": text}]} if "chat" in route else {"prompt": text}
            body = {**said, "max_tokens": 2, "session_id": session}
            async with client.session.post(f"{client.url}/v1/{route}", json=body) as response:
                assert response.status == 200
                return int((await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"])

        for word, session in (("first", "a"), ("second", None), ("third", None)):
            await cached_tokens(word, session)
        assert await cached_tokens("first", None) > 390


async def test_what_the_host_gives_back_is_told_apart() -> None:
    engine = EngineConfig(pool_tokens=600, context_tokens=4_000, hicache=HiCacheConfig(host_tokens=5_000))
    async with server(engine=engine) as client:
        prompts = [[start, *range(1000, 1400)] for start in (7, 8, 9)]
        for prompt in prompts:
            first = await client.generate(prompt, sampling={"max_new_tokens": 2})
            assert first["meta_info"]["cached_tokens"] == 0
        again = (await client.generate(prompts[0], sampling={"max_new_tokens": 2}))["meta_info"]
        assert again["cached_tokens"] == len(prompts[0]) - 1
        assert again["cached_tokens_details"] == {"device": 0, "host": len(prompts[0]) - 1}
        metrics = await client.metrics()
        assert metrics["prefill_effective_tokens_total:host_hit"] == metrics["load_back_tokens_total"] == 400
        assert metrics["prefill_effective_tokens_total:device_hit"] == 0
        assert metrics["hicache_backup_tokens_total"] >= 3 * 401
        assert metrics["hicache_host_total_tokens"] == 5_000
        async with client.session.get(f"{client.url}/metrics") as response:
            text = await response.text()
        assert 'cached_tokens_total{engine_type="unified",model_name="simulated",cache_source="host"} 400' in text
        (reading,) = make_readings(text, await loads_body(client), 0.0).values()
        assert (reading.host_hit_tokens_total, reading.reloaded_tokens_total) == (400, 400)
        assert reading.reload_seconds_total == 0  # at no cost
        async with client.session.get(f"{client.url}/server_info") as response:
            assert (await response.json())["hicache_write_policy"] == "write_through"
