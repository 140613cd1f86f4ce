"""Measures the three hot paths beside the usual way and beside pgbench: `python -m benchmarks`.

See docs/performance.md for what is measured and what was found.
"""
