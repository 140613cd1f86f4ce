"""The functions: one folder each, `main.py` inside."""
