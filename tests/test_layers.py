"""The pure core imports no Ray, no HTTP, no clock and no files, and imports between rooms point one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "concur_batch"
IMPURE = {
    "aiohttp", "asyncio", "concurrent", "http", "io", "multiprocessing", "os", "psutil", "ray", "requests", "shutil",
    "signal", "socket", "subprocess", "tempfile", "threading", "time", "urllib",
}  # fmt: skip
PURE = [
    *[f"control/{path.name}" for path in (PACKAGE / "control").glob("*.py")
      if path.name not in ("controller.py", "gauges.py", "orders.py")],
    "agent/claim.py", "agent/config.py", "agent/spec.py", "agent/tally.py", "agent/limits.py", "agent/rows.py",
    "agent/instructions.py",
    "agent/transcript.py", "agent/conversation.py", "agent/actions.py", "agent/prompting.py", "agent/template.py",
    "agent/increment.py", *[f"agent/formats/{path.name}" for path in (PACKAGE / "agent/formats").glob("*.py")],
    "engine/protocol.py", "engine/signals.py", "engine/metrics.py", "engine/vllm_metrics.py",
    "engine/drift.py", "engine/pools.py", "engine/command.py", "engine/restarts.py",
    "driver/plan.py", "driver/snapshot.py", "driver/missing.py", "driver/silence.py",
    "hub/environment.py", "doctor/finding.py", "doctor/trial.py",
    *[f"export/{path.name}" for path in (PACKAGE / "export").glob("*.py")
      if path.name not in ("assembly.py", "export.py", "forms.py", "publishing.py", "shards.py")],
    "report/fairness.py", "report/phases.py", "report/text.py", "report/life.py", "report/standing.py",
    "bench/chaos/plan.py", "bench/chaos/comparison.py",
    "bench/agent.py", "bench/batch.py", "bench/crowd.py", "bench/plan.py", "bench/reading.py", "bench/same_work.py",
    "bench/fit.py", "bench/forecast.py", "bench/forecast_table.py", "bench/plans.py", "bench/prediction.py",
    "bench/variation.py", "bench/real_loads.py", "workload/drawn.py", "workload/sweep.py",
    *[f"bench/paper/{name}.py" for name in
      ("aims", "cells", "outcome", "page", "published", "results", "tables", "transfer")],
    "trace/merging.py",
    *[f"foreign/{path.name}" for path in (PACKAGE / "foreign").glob("*.py")
      if path.name not in ("documents.py", "file.py")],
    "report/printable.py", "report/pattern.py", "report/trajectory.py", "report/trajectory_view.py", "report/agents.py",
    "report/search.py", "report/runs.py", "report/passes.py", "report/statistics_table.py", "report/columns.py",
    "workload/schema.py", "workload/change.py", "workload/seeds.py", "workload/checks.py", "workload/simulated.py",
    *[f"simulator/{path.name}" for path in (PACKAGE / "simulator").glob("*.py")
      if path.name not in ("driver.py", "openai.py", "routes.py", "server.py", "service.py", "sse.py")],
]  # fmt: skip
# Which rooms a room may import from, beside itself.
ALLOWED = {
    "control": {"engine", "report", "trace", "workload"},
    "engine": {"simulator", "workload"},
    "hub": set(),
    "simulator": {"hub"},
    "trace": set(),
    "workload": {"agent", "engine", "simulator", "trace"},
    "agent": {"control", "engine", "hub", "trace", "workload"},
    "report": {"driver", "trace"},
    "driver": {"agent", "control", "engine", "foreign", "simulator", "trace", "workload"},
    "doctor": {"agent", "driver", "engine"},
    "export": {"agent", "engine", "trace", "workload"},
    "bench": {"agent", "control", "engine", "report", "simulator", "trace", "workload"},
    "foreign": {"agent", "engine", "trace", "workload"},
    "cli": {"agent", "bench", "control", "doctor", "driver", "engine", "export", "foreign", "report", "simulator",
            "trace", "workload"},
}  # fmt: skip


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, lazily or not."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: write imports in full"
            yield node.module


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_does_no_input_or_output(name: str) -> None:
    path = PACKAGE / name
    assert not {module.split(".")[0] for module in imports(path)} & IMPURE
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"open", "print", "input"}


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_imports_between_rooms_point_one_way(room: str) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        rooms = {module.split(".")[1] for module in imports(path) if module.startswith("concur_batch.")}
        assert rooms <= ALLOWED[room] | {room}, path


def test_every_room_is_known() -> None:
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(ALLOWED)


def test_the_tools_know_nothing_of_the_orchestrator() -> None:
    for path in (ROOT / "tools_env").rglob("*.py"):
        assert not any(module.startswith("concur_batch") for module in imports(path))
