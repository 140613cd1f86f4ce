"""bench_record: does nothing, so that what is measured is the pipeline."""

from shared.step_function import step_function

main = step_function("bench_record", lambda _: None)
