"""Flask: jobs run in the context of an application."""

from contextlib import AbstractContextManager

from flask import Flask

from penstock.tasks import Attempt, TaskMiddleware


class FlaskContext(TaskMiddleware):
    """Pushes an application context around each job, so that `current_app` and extensions work.

    `Tasks("./data", middleware=[FlaskContext(app)])`
    """

    def __init__(self, app: Flask) -> None:
        self._app = app

    def around_attempt(self, attempt: Attempt) -> AbstractContextManager[object]:
        return self._app.app_context()
