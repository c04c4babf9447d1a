"""Jobs of Flask run in the context of the application."""

from pathlib import Path

from flask import Flask, current_app

from penstock.integrations.flask import FlaskContext
from penstock.tasks import Tasks, worker_thread


def test_a_job_has_the_application(tmp_path: Path) -> None:
    app = Flask("shop")
    tasks = Tasks(tmp_path, middleware=[FlaskContext(app)])
    name = tasks.add(lambda: current_app.name, name="name", keep_result_s=60)
    with worker_thread(tasks):
        assert name.enqueue().result(wait_s=60) == "shop"
