"""Whether what reads exports can be imported, and torch is no build for GPUs, whose libraries take gigabytes."""

import datasets  # noqa: F401
import polars  # noqa: F401
import torch
from harbor.utils.trajectory_validator import TrajectoryValidator  # noqa: F401
from trl import SFTTrainer  # noqa: F401

if torch.version.cuda is not None or torch.version.hip is not None:
    raise SystemExit(f"torch {torch.__version__} is a build for GPUs: have pip take one for the CPU")
