import pytest
from bench.progress import Progress
from bench.span import Span


class Clock:
    """Says what it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def at(self, now: float) -> None:
        self.now = now


def test_warm_up_is_left_out_of_rate_and_length() -> None:
    clock = Clock()
    span = Span(warm_up_marks=2, seconds=3.0, clock=clock)
    over = []
    for now, count in [(60.0, 10), (61.0, 20), (62.0, 30), (64.0, 130), (65.0, 180)]:
        clock.at(now)
        over.append(span.mark(count))
    assert over == [False, False, False, False, True]
    assert span.rate == (180 - 30) / 3.0
    assert span.periods == 2
    assert span.warm_up_seconds == 62.0


def test_a_single_period_longer_than_the_span_suffices() -> None:
    clock = Clock()
    span = Span(warm_up_marks=0, seconds=1.0, clock=clock)
    assert not span.mark(0)
    clock.at(8.0)
    assert span.mark(4)
    assert span.rate == 0.5


def test_a_run_that_never_got_warm_has_no_rate() -> None:
    span = Span(warm_up_marks=1, seconds=0.0, clock=Clock())
    span.mark(1)
    span.mark(2)
    with pytest.raises(RuntimeError, match="before it was warm"):
        span.rate  # noqa: B018  # the property raises


def test_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = Progress(2_000, every_seconds=10.0, clock=clock)
    for now in (1.0, 9.9, 10.0, 11.0, 25.0):
        clock.at(now)
        progress.report(int(now * 40))
    assert capsys.readouterr().out.splitlines() == [
        "    400 of 2,000 steps, 40 steps/s",
        "    1,000 of 2,000 steps, 40 steps/s",
    ]
