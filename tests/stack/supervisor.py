"""A stack in a process of its own, which a test kills: prints one line of JSON when it is up, then waits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil

from local.stack import Stack
from tests.stack.kit import PIPELINE, functions_in


def main() -> int:
    """Run until a signal or until a server dies, whose error ends the output."""
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    try:
        stack = Stack(
            folder / "data", port=port, tick=0.5, pipeline_file=PIPELINE, functions=functions_in(folder / "functions")
        )
        with stack:
            parts = {name: part.pid for name, part in stack.parts.items()}
            pids = [child.pid for child in psutil.Process().children(recursive=True)]
            ports = [connection.laddr.port for pid in pids for connection in _listening(pid)]
            print(json.dumps({"parts": parts, "pids": pids, "ports": ports}), flush=True)
            stack.wait()
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - told to the test
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    return 0


def _listening(pid: int) -> list[Any]:
    connections = psutil.Process(pid).net_connections(kind="tcp")
    return [one for one in connections if one.status == psutil.CONN_LISTEN]


if __name__ == "__main__":
    sys.exit(main())
