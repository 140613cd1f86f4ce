"""invoice_notify: the invoice goes to the customer by e-mail, once."""

from functools import partial

from shared.invoicing.notify import notify_invoice
from shared.providers.email import Email
from shared.providers.objects import ObjectStore
from shared.step_function import step_function

main = step_function(
    "invoice_notify", partial(notify_invoice, objects=ObjectStore.from_environment(), email=Email.from_environment())
)
