"""Starts functions one after another, each with its own environment: JSON on standard input, problems as JSON out.

In a process of its own, because an environment, handlers of signals and logs are a process's.
"""

from __future__ import annotations

import json
import os
import sys

import functions_framework

from tests.infra.kit import ROOT


def main() -> int:
    """Build each function's application as functions-framework does, and tell which of them do not start."""
    problems = {}
    base = dict(os.environ)
    for function, environment in json.load(sys.stdin).items():
        os.environ.clear()
        os.environ.update(base | environment)
        try:
            functions_framework.create_app("main", str(ROOT / "functions" / function / "main.py"))  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - whatever keeps it from starting is what is asked
            problems[function] = f"{type(error).__name__}: {error}"
    sys.stderr.write(json.dumps(problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
