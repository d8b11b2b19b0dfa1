"""What the histories of a host's agents have in common: the engine's cache holds it once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from concur_batch.engine.protocol import TokenIds


class Beginning:
    """The longest beginning that all histories so far have."""

    def __init__(self) -> None:
        self._ids: TokenIds | None = None

    def common_with(self, ids: TokenIds) -> int | None:
        """How many tokens a history has in common with all before it; None for the first."""
        if self._ids is None:
            self._ids = ids.copy()
            return None
        length = min(len(self._ids), len(ids))
        differ = np.flatnonzero(self._ids[:length] != ids[:length])
        self._ids = self._ids[: int(differ[0]) if len(differ) else length]
        return len(self._ids)
