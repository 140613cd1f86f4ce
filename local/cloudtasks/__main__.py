"""Run the embedded Cloud Tasks: `python -m local.cloudtasks --port N --data DIR [--certs-port N]`."""

from __future__ import annotations

import sys

from local.cloud import main

if __name__ == "__main__":
    sys.exit(main(["--without-pubsub", *sys.argv[1:]]))
