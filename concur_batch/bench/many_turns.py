"""A run of any size, written at once as recorders would have: some agents are made turn by turn, all are like them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import tokenizers

from concur_batch.agent.actions import Calls, parse
from concur_batch.agent.instructions import Instructions
from concur_batch.agent.prompting import initial_messages, observation_messages
from concur_batch.agent.tokenizer import Tokenizer, load_tokenizer
from concur_batch.agent.transcript import Transcript
from concur_batch.bench.load import DEMO_MODEL
from concur_batch.simulator.synthetic import SyntheticModel, SyntheticScript
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.merging import Part
from concur_batch.trace.parts import part_writer
from concur_batch.trace.reading import Run
from concur_batch.trace.schema import SCHEMAS
from concur_batch.trace.tables import Tables
from tools_env.spec import ToolResult
from tools_env.synthetic import SyntheticEnvironment

TURNS = 20  # of each agent
SAMPLES = 4  # of each task
_OUTPUT_WORDS = (40, 80)
_OBSERVATION_WORDS = (60, 120)
# So many agents run side by side, and so many are made: more than fit a page of a Parquet file, which is compressed by
# itself, so that files are no smaller than those of agents that all differ.
_AT_ONCE = 4000
_MADE = 1600
_ROWS_A_PART = 20_000
_SYSTEM = "You solve tasks in a workspace."
_WORDS = ("water", "stone", "river", "light", "house", "green", "seven", "north", "paper", "glass", "under", "above")

Row = dict[str, Any]


def write_many_turns(run_dir: Path, agents: int) -> Run:
    """A finished run of so many agents, whose turns lie in the order of time in parts of two recorders."""
    (run_dir / "model").mkdir(parents=True)
    for file in DEMO_MODEL.iterdir():
        shutil.copyfile(file, run_dir / "model" / file.name)
    environment = SyntheticEnvironment((0.5, 5.0), _OBSERVATION_WORDS, 0)
    instructions = Instructions("hermes", _SYSTEM, environment.specs())
    write_manifest(run_dir, {
        "run": run_dir.name, "status": "finished", "agents": agents, "started_at": "2026-11-30T10:00:00Z",
        "versions": {"concur-batch": "0.1.0"}, "engine": [], "simulated": True, "ids_estimated": False,
        "identity": {"model.tokenizer": "demo"}, "prompting": instructions.to_json(),
        "workload": {
            "name": "many-turns", "model": {"name": "demo", "sampling": {}}, "engine": {"kind": "simulated"},
            "replay": None,
        },
    })  # fmt: skip
    tables = Tables(run_dir)
    tables.make()
    writer = _Parts(tables)
    made = _Made(instructions, min(agents, _MADE))
    for first in range(0, agents, _AT_ONCE):
        numbers = np.arange(first, min(first + _AT_ONCE, agents))
        for turn in range(TURNS):
            for table in ("turns", "tools"):
                writer.add(table, made.rows(table, turn, numbers))
        writer.add("agents", made.rows("agents", 0, numbers))
    writer.close()
    return Run(run_dir)


class _Made:
    """The rows of agents that were made turn by turn, and of others that are like them."""

    def __init__(self, instructions: Instructions, count: int) -> None:
        self._count = count
        found: dict[tuple[str, int], list[Row]] = {}
        for number in range(count):
            for table, turn, row in _agent(instructions, number):
                found.setdefault((table, turn), []).append(row)
        self._rows = {key: pa.Table.from_pylist(rows, SCHEMAS[key[0]]).combine_chunks() for key, rows in found.items()}

    def rows(self, table: str, turn: int, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Table:
        """Those of the agents of these numbers, in one turn."""
        rows = self._rows[table, turn].take(pa.array(numbers % self._count))
        tasks = pc.binary_join_element_wise("task", pa.array(numbers // SAMPLES).cast(pa.string()), "-")
        samples = pa.array(numbers % SAMPLES, pa.int32())
        key = {
            "agent_id": pc.binary_join_element_wise(tasks, samples.cast(pa.string()), "/"),
            "task_id": tasks,
            "sample": samples,
        }
        columns = [key.get(name, rows[name]) for name in rows.column_names]
        return pa.Table.from_arrays(columns, schema=rows.schema)


class _Parts:
    """Parts of a bounded number of rows, of two recorders by turns."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._waiting: dict[str, list[pa.Table]] = {}
        self._written: dict[str, int] = {}

    def add(self, table: str, rows: pa.Table) -> None:
        waiting = self._waiting.setdefault(table, [])
        waiting.append(rows)
        if sum(each.num_rows for each in waiting) >= _ROWS_A_PART:
            self._write(table)

    def close(self) -> None:
        for table, waiting in self._waiting.items():
            if waiting:
                self._write(table)

    def _write(self, table: str) -> None:
        rows = pa.concat_tables(self._waiting[table])
        self._waiting[table] = []
        number = self._written.get(table, 0)
        self._written[table] = number + 1
        part = Part(f"recorder{number % 2}", number // 2)
        with self._tables.writing(table, part.name) as temporary, part_writer(temporary, rows.schema) as writer:
            writer.write_table(rows, row_group_size=rows.num_rows)


def _agent(instructions: Instructions, number: int) -> Iterator[tuple[str, int, Row]]:
    """The rows of one agent: the table, the turn, the row."""
    tokenizer, model = _speaking()
    rng = random.Random(number)
    transcript = Transcript(tokenizer)
    prompt = f"Task {number}\n\n{_words(rng, 40)}"
    specs = instructions.specs
    messages, tools = initial_messages(instructions.system, prompt, specs, "hermes", tokenizer.template)
    transcript.start(messages, tools)
    output_tokens = 0
    for turn in range(TURNS):
        input_tokens = transcript.tokens
        output = model.reply(transcript.ids, number)
        delta = transcript.take_delta()
        transcript.generated(output.tolist())
        output_tokens += len(output)
        text = tokenizer.decode(output.tolist())
        action = parse("hermes", text, "stop", specs)
        assert isinstance(action, Calls)
        last = turn == TURNS - 1
        said = "" if last else _words(rng, rng.randint(*_OBSERVATION_WORDS))
        results = [(call, ToolResult("ok", said)) for call in action.calls]
        if not last:
            transcript.observe(observation_messages(results, "hermes", tokenizer.template))
        yield "turns", turn, _row(
            "turns", turn=turn, replica="0", input_delta_ids=delta, output_ids=output, output_text=text,
            finish_reason="stop", action="calls", input_tokens=input_tokens, output_tokens=len(output),
            context_tokens=input_tokens + len(output), generation_seconds=rng.random(), tool_seconds=rng.random(),
        )  # fmt: skip
        for index, (call, result) in enumerate(results):
            yield "tools", turn, _row(
                "tools", turn=turn, call=index, name=call.name, arguments=orjson.dumps(call.arguments).decode(),
                status="ok", output=result.output, output_bytes=len(result.output), seconds=rng.random(),
            )  # fmt: skip
    yield "agents", 0, _row(
        "agents", final=True, status="finished", end_reason="submit", prompt=prompt, answer="done", turns=TURNS,
        reward=float(rng.random() < 0.5), tool_calls=TURNS, output_tokens=output_tokens,
        context_tokens=transcript.tokens,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _speaking() -> tuple[Tokenizer, SyntheticModel]:
    """The tokenizer, and a model that works in all turns but the last, in which it submits."""
    script = SyntheticScript((TURNS - 1, TURNS - 1), _OUTPUT_WORDS)
    plain = tokenizers.Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    return load_tokenizer(DEMO_MODEL), SyntheticModel(script, plain, "hermes")


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(_WORDS, k=count))


def _row(table: str, **values: Any) -> Row:
    """With nothing in each column that has to have something."""
    empty: dict[Any, Any] = {
        pa.string(): "",
        pa.bool_(): False,
        pa.float64(): 0.0,
        pa.int32(): 0,
        pa.int64(): 0,
        pa.timestamp("us", tz="UTC"): datetime(2026, 11, 30, tzinfo=UTC),
    }
    needed = (field for field in SCHEMAS[table] if not field.nullable and field.name not in values)
    return {field.name: empty[field.type] for field in needed} | values
