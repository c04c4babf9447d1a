"""Tasks of Django that the tests enqueue. They are at the level of a module, as Django asks."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_tasks import task
else:
    try:
        from django.tasks import task
    except ImportError:  # before Django 6
        from django_tasks import task

ran: list[Any] = []


@task
def add(a: int, b: int = 1) -> int:
    ran.append((a, b))
    return a + b


@task(priority=100, queue_name="mail")
def fail(text: str) -> None:
    raise ValueError(text)


@task(takes_context=True)
async def who(context: Any) -> dict[str, Any]:
    return {"id": context.task_result.id, "attempt": context.attempt}
