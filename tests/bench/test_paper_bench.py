"""`concur bench paper` as a user runs it, on a small slice."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from concur_batch.bench.paper import published
from concur_batch.bench.paper.cells import FOUR
from concur_batch.cli.app import app

ROW = "deepseek-v3-16"


def test_a_slice_gives_tables_parquet_and_a_page(tmp_path: Path) -> None:
    parts = "table1,table2,figure1"
    command = ["bench", "paper", "--only", parts, "--rows", ROW, "--seeds", "1", "--out", str(tmp_path / "out")]
    run = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert run.exit_code == 0, run.output
    rows = pq.read_table(tmp_path / "out" / "results.parquet").to_pylist()
    assert [(row["table"], row["system"]) for row in rows] == [
        (table, system) for table in ("table1", "table2") for system in FOUR
    ]
    page = (tmp_path / "out" / "index.html").read_text()
    for row in rows:
        assert row["simulated_seconds"] > 0
        assert row["recomputed_tokens"] <= row["computed_tokens"] <= row["looked_up_tokens"]
        shown = f"{row['simulated_seconds']:,.0f};"
        assert row["table"] != "table1" or (shown in run.output and shown in page)
    figures = published.TABLE_1[ROW]
    assert [row["paper_seconds"] for row in rows[:4]] == [figures.get(system) for system in FOUR]
    assert rows[2]["host_hit_rate"] > 0  # HiCache's
    assert "Table 1: seconds to finish the batch (simulated)" in run.output
    assert "Same work, agent by agent" in run.output
    assert page.count("<svg") == 1
    assert not re.findall(r'(?:src|href)="(?!#)', page)


@pytest.mark.parametrize(("option", "value", "told"), [
    ("--only", "table1,tabel2", "--only: there is no 'tabel2'; there are for instance table2"),
    ("--rows", "qwen", "--rows: there is no 'qwen'"),
])  # fmt: skip
def test_a_name_that_is_not_known_is_one_line(option: str, value: str, told: str) -> None:
    run = CliRunner().invoke(app, ["bench", "paper", option, value])
    assert run.exit_code == 2
    assert told in run.output
    assert run.output.count("\n") == 1
