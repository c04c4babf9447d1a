"""The dashboard: pages of the broker for operators, at `/` and `/dashboard`.

Pages are rendered here (Jinja2) and load nothing from other servers. A page that is asked for as
`text/event-stream` sends its live parts again whenever they change. Actions are forms: each shows
the REST call that does the same. See docs/dashboard.md.
"""

from penstock.server.dashboard.all_pages import ROUTES, root

__all__ = ["ROUTES", "root"]
