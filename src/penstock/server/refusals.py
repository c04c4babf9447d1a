"""What the server itself refuses, before the broker hears of it."""

from penstock.errors import PenstockError


class Refused(PenstockError):
    """A request is not as HTTP or this interface wants it."""


class NoSuchRoute(Refused):
    """There is nothing at that path."""


class MethodNotAllowed(Refused):
    """The path is right, the method is not; `allowed` says which are."""

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class RequestTooSlow(Refused):
    """The headers or the body took longer to arrive than the limit."""


class BodyTooLarge(Refused):
    """The body is larger than the limit."""


class UrlTooLong(Refused):
    """The URL is longer than the limit."""


class HeadersTooLarge(Refused):
    """There are more headers than the limit, or they are larger."""


class BodyCompressed(Refused):
    """The body is compressed; only plain ones are read."""


class NotJson(Refused):
    """The route takes JSON, and the content type says that the body is not."""


class OriginRefused(Refused):
    """A page of another site asks for a change, and its origin is not one of those configured."""
