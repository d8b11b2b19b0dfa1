from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from concur_batch.export.card import Card, card
from concur_batch.export.outcome import Outcome, Volume
from tests.export.exported_runs import Plain, write_run


def told(tmp_path: Path, **values: Any) -> Card:
    run = write_run(tmp_path / "small-20261130-100000", [])
    outcome = Outcome(
        {"train": Volume(8, 9, 40, 12345, 678, 2, 99), "val": Volume()},
        ended=11,
        not_ended={"small-20261130-100000": 2, "other": 0},
        dropped={"status failed": 1, "odd | reason": 2},
        report={"rendered as recorded": 7},
    )
    options = ["--status finished", "--where reward > 0\n or true", "--best 2"]
    fields: dict[str, Any] = {
        "format": "plain", "kind": "parquet", "schema": Plain.schema, "options": options, "outcome": outcome,
        "manifests": [run.manifest], "version": "0.1.0",
    }  # fmt: skip
    return Card(**fields | values)


def test_the_head_names_the_files_of_each_split_that_has_any(tmp_path: Path) -> None:
    _, head, _ = card(told(tmp_path)).split("---\n", 2)
    assert yaml.safe_load(head)["configs"] == [
        {"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*"}]}
    ]


def test_a_person_reads_what_is_in_it_and_where_it_is_from(tmp_path: Path) -> None:
    text = card(told(tmp_path))
    for line in (
        "| train | 8 | 9 | 40 | 12,345 | 678 | 2 |",
        "| ended | 11 |",
        "| dropped: status failed | 1 |",
        "| dropped: odd \\| reason | 2 |",
        "| kept | 8 |",
        "    --where reward > 0 or true",
        "    --best 2",
        "2 agents of `small-20261130-100000` had not ended, and are not counted.",
        "| rendered as recorded | 7 |",
        "| `input_ids` | `list<item: int32>` |",
        "* run: `small-20261130-100000`, finished, 0 agents",
        "* model: `Qwen3`",
        '* sampling: `{"temperature": 0.7}`',
        "* engine: sglang 0.5.23",
        "* run by: concur 0.1.0",
        f"* digest of tasks: `{'a' * 32}`",
    ):
        assert f"\n{line}\n" in text
    assert "`other`" not in text


def test_it_says_that_an_engine_was_simulated_and_ids_are_estimates(tmp_path: Path) -> None:
    manifest = {**told(tmp_path).manifests[0], "simulated": True, "ids_estimated": True}
    text = card(told(tmp_path, manifests=[manifest]))
    assert (
        "* engine: sglang 0.5.23, SIMULATED\n" in text
        and "| --- | ---: |\n| ended | 11 |" in text
        and "* token ids: estimated" in text
    )


def test_it_tells_no_place(tmp_path: Path) -> None:
    text = card(told(tmp_path))
    assert "secret" not in text and str(tmp_path) not in text
