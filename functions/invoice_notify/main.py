"""invoice_notify: the invoice goes to the customer by e-mail, once."""

from functools import partial

from shared.invoicing.notify import notify_invoice
from shared.invoicing.settings import MailSettings
from shared.invoicing.storage import ObjectStore
from shared.step_function import step_function

main = step_function(
    "invoice_notify",
    partial(notify_invoice, objects=ObjectStore.from_environment(), mail=MailSettings.from_environment()),
)
