"""Owns the peer: LiteLLM's proxy with a budget, in a virtual environment of its own beside the user's caches.
May touch that environment, a scratch folder and the process that it starts.
Never makes it slower than it is by itself: one worker as ours, nothing logged, no database asked.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import report, rig
from bench.rig import Process

NOTE = "LiteLLM {version}, one worker, provider_budget_config of $1,000,000 a day kept in its memory"
_HOME = (
    Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sidecar-supervisor-bench" / "litellm"
)
_START_S = 120.0

_CONFIG = """
model_list:
  - model_name: {model}
    litellm_params:
      model: openai/{model}
      api_base: http://127.0.0.1:{port}/v1
      api_key: {key}
router_settings:
  provider_budget_config:
    openai:
      budget_limit: 1000000
      time_period: 1d
general_settings:
  master_key: {key}
litellm_settings:
  telemetry: false
"""


def install() -> str:
    """Its version. Installed the first time, from the package registry that pip is set up for."""
    python = _HOME / "bin" / "python"
    if not (_HOME / "bin" / "litellm").exists():
        report.say(f"installing litellm[proxy] into {_HOME}")
        subprocess.run([sys.executable, "-m", "venv", _HOME], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "litellm[proxy]"], check=True)
    ask = "import importlib.metadata as m; print(m.version('litellm'))"
    return subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def running(folder: Path, upstream_port: int) -> Iterator[Process]:
    folder.mkdir()
    config = folder / "config.yaml"
    config.write_text(_CONFIG.format(model=rig.MODEL, port=upstream_port, key=rig.KEY))
    port = rig.free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "NO_PROXY": "*",
    }
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [
                _HOME / "bin" / "litellm",
                *("--config", config, "--host", "127.0.0.1", "--port", str(port)),
                *("--num_workers", "1", "--telemetry", "False"),
            ],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        rig.wait_until_it_listens(port, process, _START_S)
        yield Process(process.pid, port)
    finally:
        process.terminate()
        rig.end(process)
