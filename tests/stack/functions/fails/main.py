"""A step that never succeeds, with a secret in its error."""

from typing import Any

from shared.step_function import step_function


def fail(_ctx: Any) -> dict[str, Any]:
    """Raise what a library would."""
    raise RuntimeError("canary-4711")


main = step_function("fails", fail)
