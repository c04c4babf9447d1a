"""Messages pushed over WebSockets, never more at a time than the client has credit for."""

from penstock.server.ws import epochqueue, native

ROUTES = (*native.ROUTES, *epochqueue.ROUTES)
