"""In which order tiles of a line change their places in the memory that they are in, each of them copied once."""

from collections import Counter
from collections.abc import Mapping

ROOM = -1  # no place of the line: where one tile waits, whose place is needed before it can go


def in_order(sources: Mapping[int, int]) -> list[tuple[int, int]]:
    """Moves (to, from), so that none goes to where one has still to leave. `sources`: where what comes to a place is
    from; a tile may go to several. Chains first, from their ends; of what then goes round, one waits in the ROOM.
    """
    left = {to: source for to, source in sources.items() if to != source}
    readers = Counter(left.values())
    moves, ready = list[tuple[int, int]](), [to for to in left if not readers[to]]
    while ready:
        to = ready.pop()
        source = left.pop(to)
        moves.append((to, source))
        readers[source] -= 1
        if not readers[source] and source in left:
            ready.append(source)
    while left:
        first = to = min(left)
        moves.append((ROOM, first))
        while (source := left.pop(to)) != first:
            moves.append((to, source))
            to = source
        moves.append((to, ROOM))
    return moves
