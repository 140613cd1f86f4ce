"""report_notify: the report goes to whoever asked for it by e-mail, once."""

from functools import partial

from shared.invoicing.notify import notify_report
from shared.invoicing.settings import MailSettings, StorageSettings
from shared.invoicing.storage import ObjectStore
from shared.settings import load
from shared.step_function import step_function

storage, mail = load(StorageSettings, MailSettings)
main = step_function("report_notify", partial(notify_report, objects=ObjectStore(storage), mail=mail))
