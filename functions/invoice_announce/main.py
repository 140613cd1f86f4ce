"""invoice_announce: the application is told that its invoice is done, by a signed webhook."""

from functools import partial

from shared.invoicing.announce import announce_invoice
from shared.providers.webhook import Webhook
from shared.step_function import step_function

main = step_function("invoice_announce", partial(announce_invoice, webhook=Webhook.from_environment()))
