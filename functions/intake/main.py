"""intake: the HTTP API that accepts operations, tells their state, lists and cancels them."""

import flask
import functions_framework
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Request, Response

from shared import logs
from shared.config import DatabaseSettings, DeliverySettings, IntakeSettings, ProjectSettings, load
from shared.intake import Intake, authenticator, refusal
from shared.wiring import surroundings

logs.setup()
project, database, delivery, settings = load(ProjectSettings, DatabaseSettings, DeliverySettings, IntakeSettings)
around = surroundings(project, database, delivery)
intake = Intake(around.outbox, around.pipeline, authenticator(settings))

# The framework has routes and answers of its own; they are the API's here.
functions_framework.errorhandler(HTTPException)(refusal)
flask.current_app.url_map.merge_slashes = False


def main(request: Request) -> Response:
    """Answer one request of the API."""
    return intake.answer(request)
