"""reconcile: moves what time has decided, such as steps whose lease ran out."""

from typing import Any

from shared import reconcile
from shared.wiring import Surroundings, internal_function


def sweep(around: Surroundings, _body: bytes, _headers: dict[str, str]) -> dict[str, Any]:
    """Run every duty once and answer what it moved."""
    return vars(reconcile.run_once(around.outbox, around.pipeline))


main = internal_function(sweep)
