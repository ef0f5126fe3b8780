"""An operation that has ended gives its result, or the error that ended it."""

from __future__ import annotations

import pytest

from stratalog.base.errors import LogStoreError, StoreUnavailableError
from stratalog.client import values
from stratalog.client.operations import OperationCancelledError, result_of

MOVED = values.MoveResult("t", 0, "/a", "/b")


def operation(
    state: values.OperationState,
    *,
    error: LogStoreError | None = None,
    result: values.OperationResult | None = None,
) -> values.Operation:
    return values.Operation(
        operation_id="id",
        kind=values.OperationKind.MOVE,
        state=state,
        topics=(),
        start_time_ms=0,
        end_time_ms=1,
        progress=values.OperationProgress("", 0, 0, 0, 0, None),
        cancel_requested=False,
        error=error,
        result=result,
    )


def test_success_has_a_result() -> None:
    ended = operation(values.OperationState.SUCCEEDED, result=MOVED)
    assert result_of(ended, values.MoveResult) is MOVED


def test_a_failure_is_raised_although_it_has_a_result() -> None:
    away = StoreUnavailableError("the store does not answer")
    with pytest.raises(StoreUnavailableError):
        result_of(operation(values.OperationState.FAILED, error=away, result=MOVED), values.MoveResult)


def test_a_cancellation_is_raised() -> None:
    with pytest.raises(OperationCancelledError) as caught:
        result_of(operation(values.OperationState.CANCELLED, result=MOVED), values.MoveResult)
    assert caught.value.fields == {"operation_id": "id"}


@pytest.mark.parametrize("result", [None, MOVED])
def test_a_result_that_this_client_does_not_know_is_an_error(result: values.MoveResult | None) -> None:
    ended = operation(values.OperationState.SUCCEEDED, result=result)
    with pytest.raises(LogStoreError) as caught:
        result_of(ended, values.UploadResult)
    assert (caught.value.code, caught.value.fields) == (LogStoreError.code, {"operation_id": "id"})
