"""The cases of the interpreter, and sessions as graphs, on a CUDA device: `make gpu` runs the same.

Each part is a process of its own: cases set the tiles of kernels, and an error of a kernel leaves a
process without its device.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here"),
]


@pytest.mark.parametrize("part", ["slots", "pairs", "attention", "steps", "captured"])
def test_a_device_says_what_a_cpu_says(part: str, tmp_path: Path) -> None:
    out = tmp_path / "lines.jsonl"
    command = [sys.executable, "-m", "benchmarks.gpu_parts", part, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    items = {line["item"]: line for line in lines if "item" in line}
    assert [line for line in items.values() if not line["passed"]] == []
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(lines[0]["expects"]) == items.keys()
