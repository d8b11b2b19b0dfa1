"""A batch whose results are decided beforehand: real sandboxed tools, on a simulated engine that the run launches.

What an agent does depends on all that it has done: each of its last turns prints a digest of the whole workspace, with
its names, modes, links and contents. A full disk may show in no observation, so commands wait for
room as the run itself does.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import yaml

from concur_batch.bench.chaos.engine import CONFIG
from concur_batch.bench.load import DEMO_MODEL

_TASKS = 8
_SAMPLES = 2
_DEADLINE_SECONDS = 60  # far beyond any hang that is not to end a call
_ENGINE_PROGRAM = """#!{python}
from concur_batch.bench.chaos.engine import main

main()
"""

Step = dict[str, Any]


def write_work(directory: Path) -> Path:
    """Write the workload, and what it names, into the directory; its path."""
    directory.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    numbers = {f"chaos-{n}": [rng.randrange(10_000) for _ in range(20 + 5 * n)] for n in range(_TASKS)}
    tasks = [_task(name, of_task) for name, of_task in numbers.items()]
    (directory / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    scripts = [{"id": name, "variants": [_steps(extra=False), _steps(extra=True)]} for name in numbers]
    (directory / "scripts.jsonl").write_text("".join(json.dumps(script) + "\n" for script in scripts))
    program = directory / "engine"
    program.write_text(_ENGINE_PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    (directory / "engine.json").write_text(json.dumps(_engine(directory)))
    path = directory / "workload.yaml"
    path.write_text(yaml.safe_dump(_workload(directory)))
    return path


def _workload(directory: Path) -> dict[str, Any]:
    launch = {
        "python": str(directory / "engine"),
        "model": str(DEMO_MODEL),
        "env": {CONFIG: str(directory / "engine.json")},
    }
    return {
        "name": "chaos",
        "tasks": {
            "file": "tasks.jsonl",
            "prompt": "Task {{ id }}\n\nSort the numbers in numbers.txt.",
            "files": "files",
            "samples": _SAMPLES,
            "seed": 5,
        },
        "model": {"name": "chaos", "tokenizer": str(DEMO_MODEL)},
        "engine": {"kind": "sglang", "launch": launch},
        "agent": {"hosts": 2},
        "tools": {"kind": "sandbox", "deadline_seconds": _DEADLINE_SECONDS, "keep_workspaces": True},
        "control": {"policy": "concur", "period_seconds": 0.4, "initial_window": _TASKS * _SAMPLES, "h_thresh": 0.6},
        "verify": [{"kind": "command", "column": "check"}],
    }


def _engine(directory: Path) -> dict[str, Any]:
    """A pool that agents compete for; an answer takes some tenths of a second."""
    return {
        "engine": {"pool_tokens": 9_000, "context_tokens": 16_384, "max_running_requests": 256},
        "cost": {"prefill_seconds_per_token": 4e-4, "decode_step_seconds": 0.02},
        "time_scale": 10,
        "tokenizer": str(DEMO_MODEL),
        "scripts": str(directory / "scripts.jsonl"),
        "model_name": "chaos",
    }


def _task(name: str, numbers: list[int]) -> dict[str, Any]:
    lines = [f"{number}\n" for number in numbers]
    return {
        "id": name,
        "files": {"numbers.txt": "".join(lines)},
        "check": {
            "command": "cmp sorted.txt expected/sorted.txt && test -L out/link && test -s out/sum.txt",
            "files": {"expected/sorted.txt": "".join(sorted(lines, key=int))},
        },
    }


def _steps(*, extra: bool) -> list[Step]:
    """What an agent does, turn after turn; `extra` for every second sample."""
    digest = (
        "sleep 0.3; { find . -printf '%p %m %y %l\\n' | sort; find . -type f | sort | xargs sha256sum; } | sha256sum"
    )
    link = "mkdir -p out/empty && ln -sfn ../sorted.txt out/link && chmod 750 out && chmod 600 sorted.txt"
    total = (
        "import time\n"
        "total = sum(int(line) for line in open('numbers.txt'))\n"
        "while True:\n"
        "    try:\n"
        "        with open('out/sum.txt', 'w') as file:\n"
        "            file.write(f'{total}\\n')\n"
        "        break\n"
        "    except OSError:\n"
        "        time.sleep(0.1)\n"
        "print(total)\n"
    )
    rounds = [
        _step(f"Round {number}: I note it, and look at everything.", "bash", command=_appended(number) + digest)
        for number in range(1, 4 if extra else 3)
    ]
    return [
        {
            "think": "I look at what is here.",
            "calls": [_call("list_files"), _call("read_file", path="numbers.txt", start_line=1, end_line=5)],
        },
        _step(
            "I sort them by number.",
            "bash",
            command="sort -n numbers.txt > /tmp/sorted; sleep 0.2; "
            f"{_until('cp /tmp/sorted sorted.txt')}; head -n 3 sorted.txt",
        ),
        _step(
            "The least is {{ lines(last)[0] }}; I write that down.",
            "write_file",
            path="notes/plan.md",
            content="The least is {{ lines(last)[0] }}.\n",
        ),
        _step(
            "A directory for the result, with a link and modes of its own.",
            "bash",
            command=f"{_until(link)}; sleep 0.2; readlink out/link",
        ),
        _step("I choose another word.", "edit_file", path="notes/plan.md", old="least", new="smallest"),
        _step("Their sum is wanted too.", "python", code=total),
        *rounds,
        _step("Done.", "submit", answer="{{ find(last, '^[0-9a-f]+') }}"),
    ]


def _appended(number: int) -> str:
    """To a log that grows by each round."""
    return f"{{ cat log.txt 2>/dev/null; echo round {number}; }} > /tmp/log; {_until('cp /tmp/log log.txt')}; "


def _until(command: str) -> str:
    """Again and again until it succeeds: it must bear that."""
    return f"until {{ {command}; }} 2>/dev/null; do sleep 0.1; done"


def _step(think: str, tool: str, **arguments: Any) -> Step:
    return {"think": think, "calls": [_call(tool, **arguments)]}


def _call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "arguments": arguments}
