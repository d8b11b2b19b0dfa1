"""What the operator has ordered of a running batch, in a file of its run directory: a killed controller goes on so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import orjson

from concur_batch.trace.files import replacing
from concur_batch.workload.change import differences, read_control
from concur_batch.workload.schema import AnyControl

ORDERS = "control.json"


@dataclass(frozen=True, slots=True)
class Orders:
    """The settings in force, and whether the run is paused."""

    control: AnyControl
    suspended: bool = False

    def since(self, control: AnyControl) -> list[str]:
        """What was ordered since a run began under `control`, a line each."""
        return [*differences(control, self.control), *(["paused"] if self.suspended else [])]


def read_orders(path: Path) -> Orders | None:
    """The orders in the file, None where nobody has given any."""
    try:
        kept = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return Orders(read_control(kept["control"]), kept["suspended"])


def write_orders(path: Path, orders: Orders) -> None:
    """Replace the file, durably. Raises TraceError."""
    kept = {"control": orders.control.model_dump(mode="json"), "suspended": orders.suspended}
    with replacing(path) as temporary:
        temporary.write_bytes(orjson.dumps(kept, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
