"""report_notify: the report goes to whoever asked for it by e-mail, once."""

from functools import partial

from shared.invoicing.notify import notify_report
from shared.providers.email import Email
from shared.providers.objects import ObjectStore
from shared.step_function import step_function

main = step_function(
    "report_notify", partial(notify_report, objects=ObjectStore.from_environment(), email=Email.from_environment())
)
