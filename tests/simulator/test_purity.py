"""The core needs no server: no HTTP, no Ray, no clock, no event loop of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

import concur_batch.simulator

ROOM = Path(concur_batch.simulator.__file__).parent
SHELL = {"driver", "openai", "routes", "server", "server_config", "service", "sse"}
CORE = sorted({path.stem for path in ROOM.glob("*.py")} - SHELL - {"__init__"})


def test_the_core_loads_neither_http_nor_ray() -> None:
    imports = "; ".join(f"import concur_batch.simulator.{name}" for name in CORE)
    code = f"import sys; {imports}; print(sorted({{'aiohttp', 'ray'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", CORE)
def test_the_core_has_no_clock_and_does_no_io(name: str) -> None:
    imported = {
        line.split()[1].partition(".")[0]
        for line in (ROOM / f"{name}.py").read_text().splitlines()
        if line.startswith(("import ", "from "))
    }
    assert not imported & {"asyncio", "datetime", "os", "pathlib", "socket", "threading", "time"}
