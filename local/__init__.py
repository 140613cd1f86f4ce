"""The whole pipeline on one machine, and the command line."""
