"""The floor: pgbench runs the product's own statements, prepared, from C, on the same tables, triggers and disk."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import Bench
from shared import queries

TIMEOUT = 300.0  # seconds; far longer than any sample
_RATE = re.compile(r"^tps = ([0-9.]+) \(without initial connection time\)$", re.MULTILINE)


def statement(name: str, replaced: Mapping[str, str]) -> str:
    """Return a named query as pgbench takes it; `replaced` gives SQL text for what no pgbench variable can hold."""
    sql = queries.load()[name].sql
    for old, new in replaced.items():
        if old not in sql:
            raise ValueError(f"the query {name} has no {old}")
        sql = sql.replace(old, new)
    return sql + ";"


def run(bench: Bench, clients: int, count: int, script: list[str], variables: Mapping[str, str]) -> float:
    """Run the script `count` times in all and return the seconds that it took, connecting not counted.

    Raises RuntimeError with pgbench's own words.
    """
    with TemporaryDirectory(prefix="echoproof-bench-") as folder:
        path = Path(folder) / "script.sql"
        path.write_text("\n".join(script))
        command = [bench.server.binary("pgbench"), "--no-vacuum", "--protocol=prepared", f"--file={path}"]
        command += [f"--client={clients}", f"--jobs={min(clients, os.cpu_count() or 1)}"]
        command += [f"--transactions={count // clients}", "--host=127.0.0.1", f"--port={bench.server.port}"]
        command += ["--username=postgres", *(f"--define={name}={value}" for name, value in variables.items())]
        done = subprocess.run([*command, "bench"], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    rate = _RATE.search(done.stdout)
    if done.returncode or rate is None:
        raise RuntimeError(f"pgbench: {done.stderr.strip() or done.stdout.strip()}")
    return count / float(rate[1])
