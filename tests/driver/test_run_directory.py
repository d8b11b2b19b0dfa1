"""A run's directory on a node that shares no disk with the driver's."""

from __future__ import annotations

from pathlib import Path

import pytest

from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.driver.directory import make_run_directory, model_of, put_model, recover_journals
from concur_batch.trace.encode import encode_turn
from concur_batch.trace.files import TraceError
from concur_batch.trace.tables import Tables
from concur_batch.trace.writer import Writer
from tests.run.command import ROOT
from tests.trace.trace_rows import turn

DEMO_MODEL = ROOT / "workloads" / "demo_model"


def test_the_tokenizer_goes_to_the_node_and_what_is_there_stays(tmp_path: Path) -> None:
    run_dir = make_run_directory(tmp_path / "driver", "name", DEMO_MODEL)
    node = tmp_path / "node" / run_dir.name
    put_model(node, model_of(run_dir))
    assert model_of(node) == model_of(run_dir)
    assert load_tokenizer(node / "model").eos_ids == load_tokenizer(DEMO_MODEL).eos_ids
    written = {path: path.stat().st_mtime_ns for path in (node / "model").iterdir()}
    put_model(node, model_of(run_dir))
    assert {path: path.stat().st_mtime_ns for path in (node / "model").iterdir()} == written
    assert [path.name for path in run_dir.iterdir()] == ["model"]


def test_a_node_stores_what_the_last_recorders_left_and_nothing_older(tmp_path: Path) -> None:
    uri = (tmp_path / "elsewhere").as_uri()
    for number, recorder in enumerate(("recorder1-aaaa", "recorder1-bbbb")):
        writer = Writer(tmp_path / "node", recorder, storage=uri)
        writer.append(encode_turn(*turn("a", 3 * number)))
        writer.open.close()  # killed
    recover_journals(tmp_path / "node", ["recorder0-cccc", "recorder1-bbbb"], uri)
    assert list(Tables(tmp_path, uri).sizes("turns")) == ["recorder1-bbbb-000000.parquet"]
    assert [path.name for path in (tmp_path / "node" / "journal").iterdir()] == ["recorder1-aaaa-000000.jsonl"]
    recover_journals(tmp_path / "new node", ["recorder1-bbbb"], uri)
    assert not (tmp_path / "new node").exists()


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TraceError, match=f"cannot make the run directory {tmp_path}/file: "):
        make_run_directory(tmp_path / "file", "name", DEMO_MODEL)
