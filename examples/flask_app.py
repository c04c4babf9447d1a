"""Background jobs of a Flask application. Jobs run in the context of the application.

In production a worker of its own runs them: `penstock worker examples.flask_app:tasks`. Then
replace the temporary directory by one that both use, such as `Tasks("./work")`. No broker is needed
on one machine; for several machines, name a broker's URL.
"""

import tempfile

from flask import Flask, current_app, jsonify
from flask.typing import ResponseReturnValue

from penstock.integrations.flask import FlaskContext
from penstock.tasks import Tasks, worker_thread

app = Flask("shop")
app.config["GREETING"] = "welcome"
tasks = Tasks(tempfile.mkdtemp(), middleware=[FlaskContext(app)])


@tasks.task(queue="mail", keep_result_s=3600)
def greet(user_id: int) -> str:
    return f"{current_app.config['GREETING']} {user_id}"


@app.post("/users/<int:user_id>")
def sign_up(user_id: int) -> ResponseReturnValue:
    return jsonify(job=greet.enqueue(user_id).id), 202


@app.get("/jobs/<id>")
def look(id: str) -> ResponseReturnValue:
    return jsonify(result=greet.job(id).result(wait_s=30))


if __name__ == "__main__":
    with worker_thread(tasks):
        client = app.test_client()
        answer = client.post("/users/7").get_json()
        print(client.get(f"/jobs/{answer['job']}").get_json())
