"""What GPUs, or cores, share out as evenly as it goes."""


def part(index: int, count: int, size: int) -> slice:
    """The share of `index` of `count` of 0..size, as even as it goes."""
    return slice(size * index // count, size * (index + 1) // count)


def shares(count: int, size: int) -> tuple[int, ...]:
    """How long the shares of all are."""
    return tuple(share.stop - share.start for share in (part(index, count, size) for index in range(count)))
