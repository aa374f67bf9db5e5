"""Wavelets that wait at a core, against a list of them one by one."""

from collections import deque

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from meshrt.csl.machine.trains import Train, available, insert, take, waiting

# (head, gap, wavelets, whether it is a control wavelet), and how many are taken before the next comes
COMING = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 3), st.integers(1, 4), st.booleans(), st.integers(0, 3)), max_size=12
)


@given(COMING)
def test_trains_are_wavelets_one_by_one(coming: list[tuple[int, int, int, bool, int]]) -> None:
    trains: deque[Train] = deque()
    whole: list[list[tuple[int, int, bool]]] = []  # trains by when they come: of each wavelet the time, number and kind
    begun: list[tuple[int, int, bool]] = []  # what is left of one of which a part is taken, ahead of all others
    for number, (head, gap, count, control, taken) in enumerate(coming):
        count = 1 if control else count
        train = [(head + gap * k, 10 * number + k, control) for k in range(count)]
        at = next((at for at, other in enumerate(whole) if other[0][0] > head), len(whole))
        whole.insert(at, train)
        insert(trains, Train(float(head), float(gap), np.array([wavelet[1] for wavelet in train], np.uint32), control))
        ahead = [*begun, *(wavelet for train in whole for wavelet in train)]
        data = next((k for k, wavelet in enumerate(ahead) if wavelet[2]), len(ahead))
        assert (available(trains), waiting(trains)) == (data, len(ahead))
        if taken := min(taken, len(ahead)):
            raw, first, last, *_ = take(trains, taken)
            assert (raw.tolist(), first, last) == (
                [wavelet[1] for wavelet in ahead[:taken]],
                ahead[0][0],
                ahead[taken - 1][0],
            )
            for _ in range(taken):
                begun = begun or whole.pop(0)
                begun = begun[1:]
