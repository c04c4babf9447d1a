"""Background jobs of a FastAPI application, run by a worker in its own event loop.

With several processes, or for heavy work, leave `worker_running` out, and start
`penstock worker examples.fastapi_app:tasks`. Then replace the temporary directory by one that all
processes use, such as `Tasks("./work")`. No broker is needed on one machine; for several machines,
name a broker's URL.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient

from penstock.tasks import JobFailed, NotFinished, Tasks, worker_running

tasks = Tasks(tempfile.mkdtemp())


@tasks.task(queue="mail", keep_result_s=3600)
async def welcome(user_id: int) -> str:
    return f"welcomed {user_id}"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with worker_running(tasks):
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/users/{user_id}", status_code=202)
async def sign_up(user_id: int) -> dict[str, str]:
    job = await welcome.aenqueue(user_id)
    return {"job": job.id}


@app.get("/jobs/{id}")
async def look(id: str, wait_s: float = 0) -> dict[str, Any]:
    try:
        return {"result": await welcome.job(id).aresult(wait_s)}
    except NotFinished as error:
        raise HTTPException(404, str(error)) from None
    except JobFailed as error:
        raise HTTPException(500, str(error)) from None


if __name__ == "__main__":
    with TestClient(app) as client:
        job = client.post("/users/7").json()["job"]
        print(client.get(f"/jobs/{job}", params={"wait_s": 30}).json())
