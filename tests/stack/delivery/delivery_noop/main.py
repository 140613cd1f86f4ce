"""A step that does nothing."""

from shared.step_function import step_function

main = step_function("delivery_noop", lambda _: None)
