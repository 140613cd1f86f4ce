"""intake: the HTTP API that accepts operations, tells their state, lists and cancels them."""

from werkzeug.wrappers import Request, Response

from shared import logs
from shared.config import DatabaseSettings, IntakeSettings, ProjectSettings, load
from shared.intake import Intake, authenticator
from shared.wiring import surroundings

logs.setup()
project, database, settings = load(ProjectSettings, DatabaseSettings, IntakeSettings)
around = surroundings(project, database)
intake = Intake(around.outbox, around.pipeline, authenticator(settings))


def main(request: Request) -> Response:
    """Answer one request of the API."""
    return intake.answer(request)
