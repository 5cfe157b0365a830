"""One rank of a group: reads names of checks, runs them, answers what went wrong."""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import checks


def main(rank: int, size: int, folder: str) -> None:
    """Join the group and serve until standard input ends."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    for line in sys.stdin:
        try:
            getattr(checks, line.strip())()
            answer = ""
        except Exception:
            answer = f"rank {rank}: {traceback.format_exc()}"
        print(json.dumps(answer), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
