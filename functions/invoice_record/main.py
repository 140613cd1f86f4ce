"""invoice_record: an order becomes an invoice or a credit note with the next number of its series."""

from shared.invoicing.record import record_invoice
from shared.step_function import step_function

main = step_function("invoice_record", record_invoice)
