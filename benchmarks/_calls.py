"""Programs under `_calls.c`, which stands between them and the operating system."""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("_calls.c")


def run_under(module: str) -> None:
    """Return in a process that has the library; in any other, run the module in one, and exit."""
    if hasattr(ctypes.CDLL(None), "join_world"):
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "calls.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
        words = [sys.executable, "-m", module, *sys.argv[1:]]
        settings = {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        status = subprocess.run(words, env=os.environ | settings, check=False).returncode
    sys.exit(status)
