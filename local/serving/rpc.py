"""gRPC methods from plain coroutines: requests in, responses out, refusals as exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from shared.errors import EchoproofError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    Unary = Callable[[Any], Awaitable[Any]]
    Stream = Callable[[AsyncIterator[Any]], AsyncIterator[Any]]

# Requests somewhat over Google's 10 MB limit must reach the check that answers INVALID_ARGUMENT.
MAX_REQUEST = 64 * 1024 * 1024
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_REQUEST),
    ("grpc.max_send_message_length", MAX_REQUEST),
    ("grpc.so_reuseport", 0),  # a port in use is an error, not a second server that takes half of the calls
)


class RefusedError(EchoproofError):
    """The request is refused with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> RefusedError:
    """Return a refusal with INVALID_ARGUMENT."""
    return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, message)


def not_found(message: str) -> RefusedError:
    """Return a refusal with NOT_FOUND."""
    return RefusedError(grpc.StatusCode.NOT_FOUND, message)


def already_exists(message: str) -> RefusedError:
    """Return a refusal with ALREADY_EXISTS."""
    return RefusedError(grpc.StatusCode.ALREADY_EXISTS, message)


def unimplemented(message: str) -> RefusedError:
    """Return a refusal with UNIMPLEMENTED: the real service has it, this one does not."""
    return RefusedError(grpc.StatusCode.UNIMPLEMENTED, message)


def generic_handler(
    service: str,
    unary: Mapping[str, tuple[Unary, type[Any]]],
    streams: Mapping[str, tuple[Stream, type[Any]]] | None = None,
) -> grpc.GenericRpcHandler:
    """Return the handler of a service: method name → (coroutine, protobuf class of its request).

    A method that is not listed is answered UNIMPLEMENTED by gRPC itself. RefusedError becomes its status.
    """
    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            _answering(function),
            request_deserializer=request.FromString,
            response_serializer=_serialized,
        )
        for name, (function, request) in unary.items()
    } | {
        name: grpc.stream_stream_rpc_method_handler(
            _streaming(function),
            request_deserializer=request.FromString,
            response_serializer=_serialized,
        )
        for name, (function, request) in (streams or {}).items()
    }
    return grpc.method_handlers_generic_handler(service, methods)


def _serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _answering(function: Unary) -> Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]:
    async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:
        try:
            return await function(request)
        except RefusedError as refused:
            await context.abort(refused.code, str(refused))
        except OSError as error:  # the journal could not be written; nothing has changed
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"The journal: {error.strerror}")

    return answer


def _streaming(
    function: Stream,
) -> Callable[[AsyncIterator[Any], grpc.aio.ServicerContext], AsyncIterator[Any]]:
    async def answer(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        try:
            async for response in function(requests):
                yield response
        except RefusedError as refused:
            await context.abort(refused.code, str(refused))

    return answer


def page(items: list[Any], size: int, token: str) -> tuple[list[Any], str]:
    """Return one page of a listing and the token of the next, empty on the last page.

    `size` 0 means 100; a token is an offset. Raises RefusedError for a token that was not given out.
    """
    if token and not token.isdecimal():
        raise invalid("Invalid page token.")
    start, size = int(token or 0), size or 100
    rest = items[start : start + size]
    return rest, str(start + size) if start + size < len(items) else ""
