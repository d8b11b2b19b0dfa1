"""docs/workload.md says what the schema says."""

from __future__ import annotations

from pathlib import Path

import pytest

from concur_batch.workload.loading import load
from concur_batch.workload.reference import MARKER, render_reference, write_reference
from concur_batch.workload.schema import Workload
from concur_batch.workload.settings import settings_of

PAGE = Path(__file__).parents[2] / "docs" / "workload.md"


def test_the_page_holds_exactly_the_reference() -> None:
    """If not: python -m concur_batch.workload.reference docs/workload.md"""
    assert PAGE.read_text(encoding="utf-8").partition(MARKER)[2] == f"\n\n{render_reference()}"


def test_writing_keeps_what_stands_above(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Mine\n\n{MARKER}\n\nold")
    write_reference(page)
    assert page.read_text() == f"# Mine\n\n{MARKER}\n\n{render_reference()}"
    page.write_text("no marker")
    with pytest.raises(ValueError, match="has no line"):
        write_reference(page)


def test_every_key_of_every_block_has_its_row() -> None:
    rows = {line.split("`")[1] for line in render_reference().splitlines() if line.startswith("| `")}
    blocks = {block["title"]: block["properties"] for block in Workload.model_json_schema()["$defs"].values()}
    names = {name for properties in blocks.values() for name in properties}
    assert {row.rpartition(".")[2] for row in rows} == names | {"name", "output", "storage"}
    assert len(rows) >= 80


@pytest.mark.usefixtures("place")
def test_the_pages_example_is_a_valid_workload() -> None:
    example = PAGE.read_text(encoding="utf-8").partition("```yaml\n")[2].partition("```")[0]
    Path("example.yaml").write_text(example)
    settings = settings_of(load("example.yaml").workload)
    assert settings["control.policy"] == "concur"
