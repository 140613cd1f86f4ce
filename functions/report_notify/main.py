"""report_notify: the report goes to whoever asked for it by e-mail, once."""

from functools import partial

from shared.invoicing.notify import notify_report
from shared.invoicing.settings import MailSettings
from shared.invoicing.storage import ObjectStore
from shared.step_function import step_function

main = step_function(
    "report_notify",
    partial(notify_report, objects=ObjectStore.from_environment(), mail=MailSettings.from_environment()),
)
