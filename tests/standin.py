"""What a launcher starts in place of `meshrt ARGUMENTS`: its rank is a fork, for which this stands in (forks.py).

python -I -S standin.py DOOR ARGUMENTS
"""

import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from meshrt.ranks.start import shepherd

signals = shepherd.Signals()
with socket.socket(socket.AF_UNIX) as line:
    line.connect(f"\0{sys.argv[1]}")
    shepherd.hand_over(line, sys.argv[1:], signals, 0)
sys.exit("the process that forks has gone")
