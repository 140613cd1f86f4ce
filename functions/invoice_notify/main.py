"""invoice_notify: the invoice goes to the customer by e-mail, once."""

from functools import partial

from shared.invoicing.notify import notify_invoice
from shared.invoicing.settings import MailSettings, StorageSettings
from shared.invoicing.storage import ObjectStore
from shared.settings import load
from shared.step_function import step_function

storage, mail = load(StorageSettings, MailSettings)
main = step_function("invoice_notify", partial(notify_invoice, objects=ObjectStore(storage), mail=mail))
