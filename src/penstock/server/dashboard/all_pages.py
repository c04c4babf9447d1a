"""All pages, forms and files of the dashboard, and the login."""

import re

from penstock.errors import PenstockError
from penstock.server.call import Answer, Call
from penstock.server.dashboard import (
    access_page,
    dead_letters,
    message_page,
    messages_page,
    overview,
    playground,
    queue_page,
    replay,
    schedules_page,
    storage_page,
    webhooks_page,
)
from penstock.server.dashboard.rendering import static_file
from penstock.server.dashboard.serving import (
    HEADERS,
    HTML,
    error_page,
    login_page,
    visitor_in,
)
from penstock.server.dashboard.session import (
    LoginNeeded,
    check_form,
    cookie_of,
    log_in,
    log_out,
    session_of,
)
from penstock.server.dashboard.visit import HOME, Visit, form_fields, prefix_of, query_fields
from penstock.server.problems import NoSuchRoute, problem_of
from penstock.server.replies import Reply
from penstock.server.routes import Route

_FOR_EVER = ("cache-control", "public, max-age=31536000, immutable")
_OWN_PATH = re.compile(r"/(dashboard[!-~]*)?", re.ASCII)
_MODULES = (
    *(overview, queue_page, messages_page, message_page, dead_letters, replay),
    *(schedules_page, webhooks_page, storage_page, access_page, playground),
)
_MOST_PARTS = 8  # of a path that is answered with a page
_home = overview.PAGES[0]


async def root(call: Call) -> Answer:
    """Answer a browser that asks for `/`: the overview."""
    return await _home.serve(call)


async def _static(call: Call) -> Answer:
    parts = [call.path(name) for name in ("folder", "name") if name in call.target.params]
    try:
        content, media_type = static_file("/".join(parts))
    except KeyError:
        raise NoSuchRoute("there is no such file") from None
    headers = [("content-security-policy", "default-src 'none'"), _FOR_EVER]
    return Reply(content, content_type=f"{media_type}; charset=utf-8", headers=headers)


async def _find(call: Call) -> Answer:
    try:
        visit = Visit(call, await visitor_in(call), query_fields(call))
        return _go(await overview.find(visit))
    except LoginNeeded as error:
        return await login_page(call, str(error))
    except PenstockError as error:
        return await error_page(call, error)


async def _no_page(call: Call) -> Answer:
    try:
        await visitor_in(call)
        raise NoSuchRoute("there is no such page in the dashboard")
    except LoginNeeded as error:
        return await login_page(call, str(error))
    except PenstockError as error:
        return await error_page(call, error)


def _go(path: str, *headers: tuple[str, str]) -> Reply:
    return Reply(b"", 303, HTML, [*HEADERS, ("location", path), *headers])


# -- sessions --------------------------------------------------------------------------------------


async def _log_in(call: Call) -> Answer:
    try:
        fields = await form_fields(call)
        check_form(call, session_of(call), fields.get("csrf", ""))
        session = await log_in(call, fields.get("key", "").strip())
    except PenstockError as error:
        return await login_page(call, str(error), problem_of(error).status)
    prefix = prefix_of(call)
    target = fields.get("next", "")
    is_own = _OWN_PATH.fullmatch(target) and "//" not in target and "/." not in target
    path = target if is_own else HOME
    return _go(prefix + path, cookie_of(call, session, prefix))


async def _log_out(call: Call) -> Answer:
    try:
        session = session_of(call)
        check_form(call, session, (await form_fields(call)).get("csrf", ""))
        await log_out(call, session)
    except PenstockError as error:
        return await error_page(call, error)
    prefix = prefix_of(call)
    return _go(f"{prefix}{HOME}", cookie_of(call, None, prefix))


ROUTES = (
    *(page.route for module in _MODULES for page in module.PAGES),
    *(form.route for module in _MODULES for form in getattr(module, "FORMS", ())),
    *messages_page.ROUTES,
    Route("GET", f"{HOME}/find", _find, needs_key=False),
    Route("POST", f"{HOME}/login", _log_in, needs_key=False),
    Route("POST", f"{HOME}/logout", _log_out, needs_key=False),
    Route("GET", f"{HOME}/static/{{name}}", _static, needs_key=False),
    Route("GET", f"{HOME}/static/{{folder}}/{{name}}", _static, needs_key=False),
    # Last, since the first route that matches is taken: a page, not JSON, for a wrong address.
    *(
        Route(
            "GET",
            HOME + "".join(f"/{{part_{at}}}" for at in range(depth)),
            _no_page,
            needs_key=False,
        )
        for depth in range(1, _MOST_PARTS)
    ),
)
