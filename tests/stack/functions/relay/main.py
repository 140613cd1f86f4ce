"""The real relay, in a process that dies between its publish and its answer when the test says."""

from collections.abc import Sequence
from typing import Any

from shared import relay
from shared.config import DeliverySettings, ProjectSettings, load
from shared.outbox import Outbox
from shared.publisher import TIMEOUT, Dispatch, Publisher
from shared.tasks import Tasks
from shared.wiring import Surroundings, internal_function
from tests.stack import faults


class DyingPublisher(Publisher):
    """Publishes, and dies once if the flag is up."""

    def publish(self, topic: str, dispatches: Sequence[Dispatch], timeout: float = TIMEOUT) -> None:
        """Publish for real, then perhaps die."""
        super().publish(topic, dispatches, timeout)
        if faults.flag("kill-relay").exists():
            faults.flag("kill-relay").unlink()
            faults.die()


project, delivery = load(ProjectSettings, DeliverySettings)
name = project.google_cloud_project
publisher = DyingPublisher(name)
tasks = Tasks(name, delivery.tasks_location, delivery.tasks_account, delivery.step_urls)


def tick(around: Surroundings, _body: bytes, _headers: dict[str, str]) -> dict[str, Any]:
    """Run one tick with the publisher that may die."""
    return vars(relay.run_once(Outbox(around.database, around.pipeline, publisher, tasks)))


main = internal_function(tick)
