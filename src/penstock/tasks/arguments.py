"""Arguments and results of a task as JSON, by the annotations of its function.

Arguments travel by name, so a function may get new parameters that have defaults. They are encoded
and read again, as a worker will read them, before anything is published. So what does not fit, or
would arrive as something else, is refused where the mistake is.
"""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from reprlib import repr as short
from types import GenericAlias
from typing import Any, TypeVar, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from penstock.errors import InvalidInput
from penstock.tasks.round_trip import is_as_given, is_as_returned

V = TypeVar("V")

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

encode_json = msgspec.json.Encoder(decimal_format="string", uuid_format="canonical").encode
_encode_sorted = msgspec.json.Encoder(
    decimal_format="string", uuid_format="canonical", order="deterministic"
).encode


class Unreadable(Exception):
    """The arguments in a message do not fit the function. Another attempt would not either."""


class UnknownArgument(Exception):
    """A message has an argument that the function does not take: it may be of newer code."""


class Arguments:
    """Encodes and decodes the arguments of one function.

    >>> from datetime import date
    >>> def greet(name: str, *, on: date) -> None: ...
    >>> arguments = Arguments("greet", greet)
    >>> data = arguments.encode(("Ann",), {"on": date(2026, 5, 1)})
    >>> data
    b'{"name":"Ann","on":"2026-05-01"}'
    >>> arguments.decode(data)
    (['Ann'], {'on': datetime.date(2026, 5, 1)})
    """

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        self._name = name
        self._function = function
        self._signature = inspect.signature(function)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """Annotations, resolved at the first use: they may name what the module defines later."""
        try:
            return get_type_hints(self._function, include_extras=True)
        except NameError as error:
            raise InvalidInput(
                f"the annotations of task {self._name!r} cannot be resolved: {error}. Import what "
                f"they name in the module of the function, not only for type checking"
            ) from None

    @cached_property
    def _struct(self) -> Any:
        """Return a struct with a field for each parameter."""
        positional: list[Any] = []
        by_name: list[Any] = []
        for parameter in self._signature.parameters.values():
            kind: Any = self._hints.get(parameter.name, Any)
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                by_name.append(
                    (
                        parameter.name,
                        GenericAlias(list, (kind,)),
                        msgspec.field(default_factory=list),
                    )
                )
                continue
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                values = GenericAlias(dict, (str, kind))
                by_name.append((parameter.name, values, msgspec.field(default_factory=dict)))
                continue
            fields = positional if parameter.kind in _POSITIONAL else by_name
            if parameter.default is parameter.empty:
                fields.append((parameter.name, kind))
            else:
                fields.append((parameter.name, kind | UnsetType if kind is not Any else Any, UNSET))
        first = msgspec.defstruct("Arguments", positional)
        return msgspec.defstruct(
            "Arguments",
            by_name,
            bases=(first,),
            kw_only=True,
            forbid_unknown_fields=True,
            omit_defaults=True,
        )

    @cached_property
    def _decoder(self) -> Any:
        try:
            return msgspec.json.Decoder(self._struct)
        except TypeError as error:
            raise InvalidInput(
                f"task {self._name!r} has a parameter whose type cannot be read from JSON: {error}"
            ) from None

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        """The type of each parameter, as it is decoded."""
        return {field.name: field.type for field in msgspec.structs.fields(self._struct)}

    @cached_property
    def _is_variadic(self) -> bool:
        return any(one.kind in _VARIADIC for one in self._signature.parameters.values())

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return arguments as JSON. Raise TypeError if a call could not have them, InvalidInput if
        a value does not fit its annotation."""
        struct = self._struct
        try:
            if self._is_variadic:
                given = struct(**self._signature.bind(*args, **kwargs).arguments)
            else:
                given = struct(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"task {self._name!r} cannot be called like this: {error}") from None
        try:
            data = encode_json(given)
            read = self._decoder.decode(data)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"the arguments do not fit task {self._name!r}: {error}. They travel as JSON, by "
                f"the annotations of the function"
            ) from None
        for name in self._kinds:
            self._check_as_given(name, getattr(given, name), getattr(read, name))
        return data

    def encode_partly(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], later: type[V]
    ) -> tuple[bytes, dict[str, V]]:
        """Return the arguments that are known as JSON, and by name those that come later.

        Raise TypeError or InvalidInput as `encode`.
        """
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"task {self._name!r} cannot be called like this: {error}") from None
        found = {name: value for name, value in bound.items() if isinstance(value, later)}
        known = {name: value for name, value in bound.items() if name not in found}
        if not found:
            return self.encode(args, kwargs), {}
        for name, value in known.items():
            try:
                read = msgspec.json.decode(encode_json(value), type=self._kinds[name])
            except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
                raise InvalidInput(
                    f"argument {name!r} does not fit task {self._name!r}: {error}"
                ) from None
            self._check_as_given(name, value, read)
        return encode_json(known), found

    def _check_as_given(self, name: str, given: Any, read: Any) -> None:
        """Raise InvalidInput if a worker would read another value than was given."""
        if not is_as_given(given, read, self._kinds[name]):
            raise InvalidInput(
                f"argument {name!r} of task {self._name!r} would not come back from JSON as it is, "
                f"{short(given)}, but as {short(read)}: annotate the parameter with its type, or "
                f"give a value that JSON has (it has no NaN, infinity or bytes)"
            )

    def decode(self, data: bytes | msgspec.Raw) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and named arguments. Raise Unreadable if they do not fit.

        Raise UnknownArgument if the function does not take all of them.
        """
        try:
            read = self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            if unknown := self._unknown_in(data):
                raise UnknownArgument(
                    f"the arguments do not fit task {self._name!r}: the function of this worker "
                    f"has no parameter {unknown!r}; a newer worker may run it"
                ) from None
            raise Unreadable(f"the arguments do not fit task {self._name!r}: {error}") from None
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self._signature.parameters.values():
            value = getattr(read, parameter.name)
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args += value
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs |= value
            elif value is UNSET:
                if parameter.kind in _POSITIONAL:
                    args.append(parameter.default)
            elif parameter.kind in _POSITIONAL:
                args.append(value)
            else:
                kwargs[parameter.name] = value
        return args, kwargs

    def _unknown_in(self, data: bytes | msgspec.Raw) -> str | None:
        """Return the first argument that the function does not take; None if it takes all."""
        try:
            given = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        return next((name for name in given if name not in self._signature.parameters), None)

    def normalised(self, data: bytes) -> bytes:
        """Return encoded arguments so that equal ones are equal: with defaults, and sorted.

        >>> def search(words: set[str], limit: int = 10) -> None: ...
        >>> arguments = Arguments("search", search)
        >>> arguments.normalised(b'{"limit":10,"words":["b","a"]}')
        b'{"limit":10,"words":["a","b"]}'
        >>> arguments.normalised(b'{"words":["a","b"]}')
        b'{"limit":10,"words":["a","b"]}'
        """
        args, kwargs = self.decode(data)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        with suppress(msgspec.MsgspecError, TypeError, ValueError, RecursionError, Unreadable):
            args, kwargs = self.decode(encode_json(bound.arguments))  # 1 is 1.0 by its type
            bound = self._signature.bind(*args, **kwargs)
        found = {}
        for name, value in bound.arguments.items():
            for encode in (_encode_sorted, encode_json):  # a set of several types has no order
                try:
                    found[name] = msgspec.Raw(encode(value))
                    break
                except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
                    continue  # last: a default that is not JSON, which no call can give
        return _encode_sorted(found)

    @cached_property
    def result_decoder(self) -> Any:
        """Reads a result by the annotation of the return value."""
        kind = self._hints.get("return", Any)
        return msgspec.json.Decoder(Any if kind is None else kind)

    def encode_result(self, value: Any) -> bytes:
        """Return a result as JSON. Raise ValueError if it would come back as something else."""
        try:
            data = encode_json(value)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON: {error}") from None
        try:
            read = self.result_decoder.decode(data)
        except (msgspec.MsgspecError, InvalidInput, TypeError):
            read = msgspec.json.decode(data)  # the annotation is wrong, as `result` will say
        if not is_as_returned(value, read):
            raise ValueError(
                f"it would not come back from JSON as it is, {short(value)}, but as {short(read)}"
            )
        return data
