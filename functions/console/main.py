"""console: the review queue and everything that an operator looks at, in a browser."""

import flask
import functions_framework
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Request, Response

from shared import logs
from shared.config import DatabaseSettings, ProjectSettings, check_timeouts, load
from shared.console.app import Console
from shared.console.settings import ConsoleSettings
from shared.database import Database
from shared.wiring import connect_function

logs.setup()
project, database, settings = load(ProjectSettings, DatabaseSettings, ConsoleSettings)
pipeline = project.pipeline()
check_timeouts(database, pipeline)
console = Console(Database(connect_function(database), database.pool_size), pipeline, settings)

# The framework has routes and answers of its own; they are the console's here.
functions_framework.errorhandler(HTTPException)(console.refuse)
flask.current_app.url_map.merge_slashes = False


def main(request: Request) -> Response:
    """Answer one request of a browser."""
    return console.answer(request)
