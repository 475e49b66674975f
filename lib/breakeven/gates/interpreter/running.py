"""The interpreter as a whole: its rooms together, and how a function is run."""

from __future__ import annotations

from breakeven.gates.interpreter.attributes import Attributes
from breakeven.gates.interpreter.builtin_models import BuiltinModels
from breakeven.gates.interpreter.calls import Calls
from breakeven.gates.interpreter.classes import Classes
from breakeven.gates.interpreter.containers import Containers
from breakeven.gates.interpreter.deferral import Deferral
from breakeven.gates.interpreter.expressions import Expressions
from breakeven.gates.interpreter.frames import (
    Frame,
    Watch,
    has_decorator,
)
from breakeven.gates.interpreter.names import Names
from breakeven.gates.interpreter.statements import Statements
from breakeven.gates.interpreter.stores import Stores
from breakeven.gates.program import FunctionNode, Module
from breakeven.gates.values import (
    ClassRef,
    FunctionRef,
    Instance,
    Pending,
    RaisedError,
    free,
    known,
)


class Interpreter(
    Deferral, Statements, Stores, Names, Expressions, Containers, Attributes, Classes, Calls, BuiltinModels
):
    """Evaluates expressions and runs functions of a program under given facts."""

    def run(self, function: FunctionRef, watch: Watch | None = None, forced: dict[int, bool] | None = None) -> Frame:
        """Run a function whose arguments are free, watching for something; returns the finished frame.

        Raises RaisedError where the function certainly raises; the frame is then its attribute ``frame``.
        """
        frame = self.frame_of(function)
        saved = self.watch, self.forced, self._steps, self._muted, self._comparing
        self.watch, self._steps, self._muted, self._comparing = watch, 0, 0, 0
        if forced is not None:
            self.forced = forced
        frame.root = watch is not None
        frame.hop = (
            watch is not None and not watch.lenient and bool(watch.functions or watch.methods or watch.externals)
        )
        try:
            self._block(function.node.body, frame)  # type: ignore[arg-type]
        except RecursionError:
            stopped = RaisedError("BudgetError", "too deep to follow", self._nowhere(function.node, frame), [])
            stopped.frame = frame  # type: ignore[attr-defined]
            raise stopped from None
        except RaisedError as error:
            error.frame = frame  # type: ignore[attr-defined]
            raise
        finally:
            self.watch, self.forced, self._steps, self._muted, self._comparing = saved
        return frame

    def frame_of(self, function: FunctionRef) -> Frame:
        """A frame with free arguments; ``self`` is an object of the class whose attributes are looked up when asked."""
        node = function.node
        assert isinstance(node, FunctionNode)
        owner = function.owner
        arguments: dict[str, Pending] = {}
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for index, argument in enumerate(every):
            if index == 0 and owner is not None and not has_decorator(node, "staticmethod"):
                is_class = has_decorator(node, "classmethod")
                arguments[argument.arg] = known(owner if is_class else Instance(owner, symbolic=True))
            else:
                arguments[argument.arg] = free(f"argument {argument.arg}", name="")
        for extra in (node.args.vararg, node.args.kwarg):
            if extra is not None:
                arguments[extra.arg] = free(f"argument {extra.arg}")
        module = function.module
        outer = module.enclosing_function(node)
        closure = self._locals_after(module, outer) if outer is not None else {}
        return Frame(module, module.symbol(node), arguments, node, owner, closure)

    def _locals_after(self, module: Module, function: FunctionNode) -> dict[str, Pending]:
        """The local variables that a function leaves, for the functions inside it."""
        key = ("locals", id(function))
        if key in self._busy:
            return {}
        self._busy.add(key)
        try:
            return self.run(self.function(module, function)).locals
        except RaisedError:
            return {}
        finally:
            self._busy.discard(key)

    def function(self, module: Module, node: FunctionNode) -> FunctionRef:
        """The function of a definition; a method gets its class."""
        cls = module.enclosing_class(node)
        return FunctionRef(module, node, ClassRef(module, cls) if cls is not None else None)
