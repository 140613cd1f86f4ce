"""report_generate: what was invoiced to an account in a period becomes a CSV and a PDF in Cloud Storage."""

from functools import partial

from shared.invoicing.generate import generate_report
from shared.providers.storage import Storage
from shared.step_function import step_function

main = step_function("report_generate", partial(generate_report, storage=Storage.from_environment()))
