from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools_env.support import Agent, begun
from tools_env.file_tools import FILE_LIMIT_BYTES, edit_file, read_file
from tools_env.sandbox import SandboxEnvironment
from tools_env.workspace import FileProblem, Workspace, split_path

SECRET = "the host's secret"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "secret").write_text(SECRET)
    return directory


async def test_write_read_edit_list_search(agent: Agent) -> None:
    assert (await agent.write_file(path="src/a.py", content="x = 1\ny = 2\n")).output == "created src/a.py (12 bytes)"
    assert (await agent.write_file(path="src/a.py", content="x = 1\n")).output == "overwrote src/a.py (6 bytes)"
    assert (await agent.edit_file(path="/workspace/src/a.py", old="1", new="3")).output.startswith("edited")
    assert (await agent.read_file(path="./src//a.py")).output == "x = 3\n"
    assert (await agent.list_files()).output == "notes.txt\nsrc/\nsrc/a.py"
    assert (await agent.list_files(path="src")).output == "src/a.py"
    assert (await agent.search_files(pattern=r"^\w = \d")).output == "src/a.py:1: x = 3\n"
    assert (await agent.search_files(pattern="two", path="notes.txt")).output == "notes.txt:2: two\n"
    assert (await agent.search_files(pattern="absent")).output == "no hits\n"
    # The agent's own commands see and may change what the file tools made.
    assert (await agent.bash(command="echo more >> src/a.py; mkdir src/d; cat src/a.py")).output == "x = 3\nmore\n"


async def test_lines_of_a_file(agent: Agent) -> None:
    async def lines(**which: int) -> str:
        return str((await agent.read_file(path="notes.txt", **which)).output)

    assert await lines(start_line=2) == "two\nthree\n"
    assert await lines(end_line=1) == "one\n"
    assert await lines(start_line=2, end_line=2) == "two\n"
    assert await lines(start_line=3, end_line=99) == "three\n"
    assert "outside of its 3 lines" in await lines(start_line=4)
    assert "outside" in await lines(start_line=0)
    assert "before start_line" in await lines(start_line=3, end_line=2)


@given(st.text(alphabet="ab\r\n\x0b\u2028é", max_size=40))
def test_a_line_ends_at_lf_alone(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    workspace = Workspace(tmp_path_factory.mktemp("w"), None)
    workspace.write("f", text.encode())
    lines = text.split("\n")
    count = len(lines) - (lines[-1] == "")
    for number in range(1, count + 1):
        end = "\n" if number < len(lines) else ""
        assert read_file(workspace, "f", number, number).decode() == lines[number - 1] + end


async def test_edit_needs_exactly_one_occurrence(agent: Agent) -> None:
    await agent.write_file(path="f", content="a\nb\naaa\n  c\n")

    async def refused(**arguments: str) -> str:
        result = await agent.edit_file(path="f", **arguments)
        assert result.status == "error"
        return str(result.output)

    assert "4 times (lines 1, 3, 3, 3)" in await refused(old="a", new="x")
    assert "2 times (lines 3, 3)" in await refused(old="aa", new="x"), "overlapping places are two places"
    assert "does not occur" in await refused(old="z", new="x")
    assert "white space" in await refused(old="\tc\n", new="x")
    assert "empty" in await refused(old="", new="x")
    assert "nothing to change" in await refused(old="b", new="b")
    assert (await agent.read_file(path="f")).output == "a\nb\naaa\n  c\n"


async def test_edit_keeps_all_else_as_it_is(agent: Agent) -> None:
    path = agent.workspace / "f"
    path.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    assert (await agent.edit_file(path="f", old="one\ntwo\n", new="1\n2\n")).status == "ok"
    assert path.read_bytes() == b"1\r\n2\r\nthree\r\n"
    path.write_bytes(b"caf\xe9 \xff\nna\xc3\xafve\n")
    path.chmod(0o750)
    assert (await agent.edit_file(path="f", old="naïve", new="wise 😀")).status == "ok"
    assert path.read_bytes() == b"caf\xe9 \xff\nwise \xf0\x9f\x98\x80\n"
    assert path.stat().st_mode & 0o777 == 0o750


@given(st.text("ab\r\n", max_size=30), st.text("ab\n", min_size=1, max_size=4), st.text("ab\n", max_size=4))
def test_edit_replaces_one_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, content: str, old: str, new: str
) -> None:
    workspace = Workspace(tmp_path_factory.mktemp("w"), None)
    workspace.write("f", content.encode())
    try:
        edit_file(workspace, "f", old, new)
    except FileProblem:
        assert read_file(workspace, "f").decode() == content
    else:
        result = read_file(workspace, "f").decode()
        assert result in (
            content.replace(old, new, 1),
            content.replace(old.replace("\n", "\r\n"), new.replace("\n", "\r\n"), 1),
        )


async def test_binary_large_and_missing_files_are_explained(agent: Agent) -> None:
    (agent.workspace / "binary").write_bytes(b"\x7fELF\0\0")
    with (agent.workspace / "large").open("wb") as file:
        file.truncate(FILE_LIMIT_BYTES + 1)
    for path, said in (
        ("binary", "is a binary file of 6 bytes"),
        ("large", "file tools take"),
        ("missing/file", "missing: no such file"),
        ("notes.txt/x", "not a directory"),
        ("", "is a directory"),
        ("x" * 300, "name too long"),
        ("a/" * 3000, "longer than"),
    ):
        result = await agent.read_file(path=path)
        assert result.status == "error" and said in result.output, result
    (agent.workspace / "odd").write_bytes(b"bad \xff\xfe bytes\n")
    assert (await agent.read_file(path="odd")).output == "bad \ufffd\ufffd bytes\n"
    long = await agent.write_file(path="long", content="x" * 50_000)
    assert long.status == "ok"
    assert (await agent.read_file(path="long")).truncated


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret",
        "/etc/passwd",
        "a/../../outside/secret",
        "/workspace/../etc/passwd",
        "//etc/passwd",
        "/workspacex/f",
    ],
)
async def test_paths_that_lead_out_are_refused(agent: Agent, outside: Path, path: str) -> None:
    for result in (
        await agent.read_file(path=path),
        await agent.write_file(path=path, content="x"),
        await agent.edit_file(path=path, old=SECRET, new="x"),
        await agent.list_files(path=path),
        await agent.search_files(pattern=".", path=path),
    ):
        assert result.status == "error" and SECRET not in result.output


@given(st.text(alphabet="a./\\~ ", max_size=20))
def test_a_path_is_split_inside_or_refused(path: str) -> None:
    try:
        parts = split_path(path)
    except FileProblem:
        return
    assert not {"", ".", ".."} & set(parts) and not any("/" in part for part in parts)


@pytest.mark.parametrize("absolute", [True, False])
async def test_symbolic_links_are_not_followed(agent: Agent, outside: Path, absolute: bool) -> None:
    target = str(outside) if absolute else os.path.relpath(outside, agent.workspace)
    links = f"ln -s {target}/secret file; ln -s {target} dir; ln -s / root; ln -s /proc/self/root proc; ln -s loop loop"
    await agent.bash(command=links)
    before = (outside / "secret").stat()
    inner = f"root{outside}/secret"
    for path in ("file", "dir/secret", inner, f"proc{outside}/secret", "loop", "loop/x"):
        for result in (
            await agent.read_file(path=path),
            await agent.write_file(path=path, content="overwritten"),
            await agent.edit_file(path=path, old=SECRET, new="x"),
            await agent.list_files(path=path),
        ):
            assert result.status == "error" and "symbolic link" in result.output, result
        assert SECRET not in (await agent.search_files(pattern="secret", path=path)).output
    assert (await agent.write_file(path="dir/new", content="x")).status == "error"
    assert SECRET not in (await agent.search_files(pattern="secret")).output
    listing = (await agent.list_files()).output.splitlines()
    assert f"dir -> {target}" in listing and not any(line.startswith("dir/") for line in listing)
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").stat() == before and (outside / "secret").read_text() == SECRET


async def test_nothing_escapes_while_links_are_swapped(agent: Agent, outside: Path) -> None:
    # The agent flips a/ between a directory and a link to the outside as fast as it can while files are used in it.
    flip = (
        f"mkdir a b; echo inside > a/secret; echo inside > b/secret; ln -s {outside} link; touch begun;"
        'exec python3 -c "from os import rename as r\n'
        "while True: r('a','c'); r('link','a'); r('a','link'); r('c','a')\""
    )
    flipping = asyncio.create_task(agent.bash(command=flip))
    await begun(agent)
    outcomes = set()
    for number in range(400):
        read = await agent.read_file(path="a/secret")
        assert SECRET not in read.output
        wrote = await agent.write_file(path="a/planted" if number % 2 else "a/secret", content="inside\n")
        outcomes |= {read.status, wrote.status}
        assert SECRET not in (await agent.list_files(path="a")).output
    await agent.session.stop_running()
    await flipping
    assert outcomes == {"ok", "error"}, "the race never happened"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_text() == SECRET


async def test_no_special_file_holds_a_tool_up(agent: Agent) -> None:
    await agent.bash(command="mkfifo fifo; mkdir directory")
    here = Path.cwd()
    os.chdir(agent.workspace)
    try:
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind("socket")
    finally:
        os.chdir(here)
    for path in ("fifo", "socket", "directory"):
        for result in (
            await agent.read_file(path=path),
            await agent.write_file(path=path, content="x"),
            await agent.edit_file(path=path, old="a", new="b"),
        ):
            assert result.status == "error" and result.seconds < 5, result
    assert (await agent.search_files(pattern="x")).output == "no hits\n"
    assert (await agent.list_files()).output == "directory/\nfifo\nnotes.txt\nsocket"


async def test_listings_are_sorted_escaped_and_capped(agent: Agent) -> None:
    await agent.python(code="for i in range(10000): open(f'{i:05}', 'w')")
    listing = (await agent.list_files()).output
    assert listing.startswith("00000\n00001\n") and listing.endswith(
        "[... 9001 more entries: list a directory further down ...]"
    )
    await agent.bash(command=r"rm -f 0*; mkdir odd; cd odd; touch $'new\nline' $'bad\xff' $'esc\e[31m' 'naïve 😀'")
    assert (await agent.list_files(path="odd")).output.splitlines() == [
        r"odd/bad\xff",
        r"odd/esc\x1b[31m",
        "odd/naïve 😀",
        r"odd/new\nline",
    ]


async def test_a_deep_tree_is_listed_in_part_and_removed(agent: Agent) -> None:
    await agent.python(code="import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nopen('f', 'w')")
    assert len((await agent.list_files()).output.splitlines()) == 65
    await agent.session.close()
    assert not agent.workspace.exists()


async def test_a_catastrophic_search_ends_at_the_deadline(tmp_path: Path) -> None:
    environment = SandboxEnvironment(tmp_path, ["search_files"], deadline_seconds=1)
    agent = Agent(await environment.open("a", {"f": "a" * 40 + "!\n"}))
    assert (await agent.search_files(pattern="(a+)+$")).status == "timeout"
    assert "not a valid regular expression" in (await agent.search_files(pattern="(")).output
    await environment.close()


async def test_search_caps_hits_and_passes_over_what_is_no_text(agent: Agent) -> None:
    await agent.bash(command="seq 1000 > n; printf 'x\\0 7' > binary; truncate -s 100M huge; echo 7 > $'a\\nb'")
    hits = (await agent.search_files(pattern="7")).output.splitlines()
    assert len(hits) == 201 and hits[-1].startswith("[... more than 200 hits")
    assert hits[0] == r"a\nb:1: 7" and hits[1] == "n:7: 7"
    assert not any(hit.startswith("binary") for hit in hits)
    missing = await agent.search_files(pattern="7", path="nowhere")
    assert (missing.status, missing.output) == ("error", "nowhere: no such file or directory\n")
