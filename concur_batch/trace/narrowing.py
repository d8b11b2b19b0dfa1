"""A few rows out of many: which row groups of a table's parts hold them, so that no other is read whole."""

from __future__ import annotations

import pyarrow.compute as pc
import pyarrow.dataset as ds

# A column that every scan can give: which of the dataset's fragments, here a row group, a row is of.
_GROUP = "__fragment_index"


def narrowed(parts: ds.FileSystemDataset, filter: pc.Expression) -> ds.FileSystemDataset:
    """The row groups in which the filter finds a row.

    They are found by the columns that the filter is of. Those are a small share of a row: a plain scan would read the
    token ids and texts of all rows, to give those of a few.
    """
    groups = [group for part in parts.get_fragments() for group in part.split_by_row_group(filter)]
    of_groups = ds.FileSystemDataset(groups, parts.schema, parts.format, parts.filesystem)
    found = of_groups.to_table(columns=[_GROUP], filter=filter)[_GROUP].unique()
    wanted = [groups[number] for number in found.to_pylist()]
    return ds.FileSystemDataset(wanted, parts.schema, parts.format, parts.filesystem)
