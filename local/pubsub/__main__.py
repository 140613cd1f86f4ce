"""Run the embedded Pub/Sub: `python -m local.pubsub --port N --data DIR [--certs-port N]`."""

from __future__ import annotations

import sys

from local.cloud import main

if __name__ == "__main__":
    sys.exit(main(["--without-tasks", *sys.argv[1:]]))
