"""invoice_render: the recorded invoice becomes a PDF in Cloud Storage."""

from functools import partial

from shared.invoicing.render import render_invoice
from shared.providers.storage import Storage
from shared.step_function import step_function

main = step_function("invoice_render", partial(render_invoice, storage=Storage.from_environment()))
