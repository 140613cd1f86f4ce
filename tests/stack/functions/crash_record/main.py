"""The real step `record`, in a process that dies where the key of the operation says."""

from shared.invoicing.record import record_invoice
from shared.step_function import step_function
from tests.stack import faults

main = faults.function(step_function("crash_record", faults.handler(record_invoice)))
