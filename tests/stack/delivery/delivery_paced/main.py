"""A step that calls a provider once."""

import os
from typing import Any

import requests

from shared.step_function import step_function


def call(ctx: Any) -> dict[str, Any]:
    """Call the provider that the test has started."""
    answer = requests.post(os.environ["DELIVERY_TEST_PROVIDER"], data=ctx.key, timeout=10)
    return {"status": answer.status_code}


main = step_function("delivery_paced", call)
