"""invoice_collect: the invoice is paid, once."""

from functools import partial

from shared.invoicing.collect import collect_payment
from shared.providers.payments import Payments
from shared.step_function import step_function

main = step_function("invoice_collect", partial(collect_payment, payments=Payments.from_environment()))
