"""A small abstract interpreter of Python: runs a function of the source with three truth values.

Where a condition is known, only that branch is run; where it is not, both are, and what they leave is joined. What
the interpreter does not know how to run becomes ``opaque``: nothing may be concluded from it. No file is imported.
"""

from breakeven.gates.interpreter.frames import Frame, Step, Watch, mentions
from breakeven.gates.interpreter.running import Interpreter

__all__ = ["Frame", "Interpreter", "Step", "Watch", "mentions"]
