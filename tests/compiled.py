"""The mark of tests that need the compiled core.

They may be left out, with a line that says so, only where no C compiler was at hand for the build: there meshrt runs on
NumPy, which is the definition, and the same tests run on that. Where there is a compiler the core has to be there:
tests/mesh/wires/test_core.py fails without.
"""

import pytest

from meshrt.mesh.wires import core

compiled = pytest.mark.skipif(core.built is None, reason="the compiled core was not built: no C compiler")
