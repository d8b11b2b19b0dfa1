"""The `concur` command with a controller that counts: `python -m concur_batch.bench.metered_run run WORKLOAD`."""

from __future__ import annotations

from importlib.metadata import entry_points
from unittest.mock import patch

from concur_batch.bench.metered import MeteredController

if __name__ == "__main__":
    (command,) = entry_points(group="console_scripts", name="concur")
    with patch("concur_batch.driver.driver.Controller", MeteredController):
        command.load()()
