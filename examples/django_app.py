"""Django's tasks on Penstock, in one file: settings, a task, and a worker.

In a project the settings are in settings.py, and a worker runs with
`penstock worker penstock.integrations.django_worker:tasks`.
"""

import sys
import tempfile

import django
from django.conf import settings

settings.configure(
    USE_TZ=True,
    TASKS={
        "default": {
            "BACKEND": "penstock.integrations.django.PenstockBackend",
            "QUEUES": ["default"],
            "OPTIONS": {"place": tempfile.mkdtemp(), "keep_result_s": 3600},
        }
    },
)
django.setup()

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task

from penstock.integrations.django import backend_of  # noqa: E402 - after the settings
from penstock.tasks import TasksWorker, TasksWorkerOptions  # noqa: E402

sys.modules["django_app"] = sys.modules[__name__]  # a worker imports tasks by their module
__name__ = "django_app"


@task  # type: ignore[untyped-decorator]
def welcome(user_id: int) -> str:
    return f"welcomed {user_id}"


result = welcome.enqueue(7)
print(result.status)
TasksWorker(backend_of("default").tasks, options=TasksWorkerOptions(idle_s=0)).run()
result.refresh()
print(result.status, result.return_value)
