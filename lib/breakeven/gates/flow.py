"""From a call back to where it comes from: which decisions let a function of the source be reached."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import Literal

from breakeven.gates.interpreter import Frame, Interpreter, Step, Watch, mentions
from breakeven.gates.program import FunctionNode, Module, import_source, own_nodes
from breakeven.gates.values import ClassRef, External, FunctionRef, Instance, RaisedError

Status = Literal["open", "closed", "unknown"]

_MAX_CALLERS = 24
_MAX_CLIMB = 6
_MAX_BEYOND = 1
_MANY_CALLERS = 6
_MAX_FORCED = 8
# Methods that a framework calls, so that no call in the source is needed to keep them alive.
_CALLED_BY_OTHERS = ("forward", "__", "_forward", "visit_", "op_")


@dataclass
class Reach:
    """Whether something is reached inside one function, and the decisions that say so.

    ``closed`` are the decisions that keep it from being reached, each forced open to see what lies behind;
    ``steps`` are the decisions on the way there.
    """

    function: FunctionRef
    status: Status
    closed: list[Step] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    forced: dict[int, bool] = field(default_factory=dict)
    values: list[object] = field(default_factory=list)


@dataclass
class Climb:
    """What stands between a function and the runtime's entries: the hops on the way and whether one way is open."""

    status: Status
    live: bool
    hops: list[Reach] = field(default_factory=list)


_ORDER: dict[Status, int] = {"closed": 0, "unknown": 1, "open": 2}
_DEVICE_WORDS = re.compile(r"cuda|nvml|device|capab|arch|sm_?\d|hopper|blackwell|gpu", re.I)


class Flow:
    """Reachability questions about one program under one interpreter."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.program = interpreter.program
        self._reached: dict[tuple[int, int], Reach] = {}
        self._climbed: dict[tuple[int, int], Climb] = {}

    # ------------------------------------------------------------ inside one function

    def reach(self, function: FunctionRef, watch: Watch, *, wanted: bool | None = None) -> Reach:
        """Whether the watched thing is reached in the function.

        ``wanted`` keeps only hits whose value can have that truth. Marks on tensors lead through every model: they are
        followed only where the way is open without them.
        """
        self.interpreter.follow_marks = self.interpreter.passed_mark = False
        try:
            first = self._reach(function, watch, wanted)
        finally:
            self.interpreter.follow_marks = True
        return (
            self._reach(function, watch, wanted) if first.status != "closed" and self.interpreter.passed_mark else first
        )

    def _reach(self, function: FunctionRef, watch: Watch, wanted: bool | None) -> Reach:
        forced: dict[int, bool] = {}
        closed: list[Step] = []
        for _ in range(_MAX_FORCED):
            hits, frame, error = self._attempt(function, watch, forced, wanted)
            if hits:
                best = min(hits, key=lambda hit: (hit.is_opaque, sum(not step.known for step in hit.path)))
                status: Status = "closed" if closed else "unknown" if best.is_opaque else "open"
                return Reach(function, status, closed, best.path, forced, [hit.value for hit in hits])
            step = self._killer(function, watch, forced, frame, error, wanted)
            if step is None:
                break
            closed.append(step)
            forced[id(step.node)] = not step.needed
        return Reach(function, "closed" if closed else "unknown", closed, [], forced)

    def _attempt(self, function: FunctionRef, watch: Watch, forced: dict[int, bool], wanted: bool | None):  # type: ignore[no-untyped-def]
        fresh = replace(watch, hits=[])
        error: RaisedError | None = None
        try:
            frame = self.interpreter.run(function, fresh, forced)
        except RaisedError as raised:
            frame, error = raised.frame, raised  # type: ignore[attr-defined]
        hits = [hit for hit in fresh.hits if wanted is None or hit.value.truth is not (not wanted)]
        return hits, frame, error

    def _killer(
        self,
        function: FunctionRef,
        watch: Watch,
        forced: dict[int, bool],
        frame: Frame,
        error: RaisedError | None,
        wanted: bool | None,
    ) -> Step | None:
        """The decision that keeps the watched thing from being reached: the first whose reversal gets there."""
        candidates = self._candidates(function.module, watch.words, frame, error)
        candidates = [step for step in candidates if step.known and id(step.node) not in forced]
        for step in candidates[:6]:
            hits, _, _ = self._attempt(function, watch, {**forced, id(step.node): not step.needed}, wanted)
            if hits:
                return step
        return candidates[0] if candidates else None

    def _candidates(self, module: Module, words: frozenset[str], frame: Frame, error: RaisedError | None) -> list[Step]:
        found: list[Step] = []
        if error is not None:
            found += [step for step in error.steps if isinstance(step, Step)]
        skipped = [step for step in frame.log if step.known and self._skips(module, step, words)]
        left = [step for step in reversed(frame.log) if step.known and step.exited]
        rest = skipped + left
        rest.sort(key=lambda step: "arch" not in step.leaf.deps)
        return list({id(step.node): step for step in [*found, *rest]}.values())

    def _skips(self, module: Module, step: Step, words: frozenset[str]) -> bool:
        parent = module.parent(step.node)
        if not isinstance(parent, ast.If | ast.IfExp | ast.While):
            return False
        branch = parent.orelse if step.needed else parent.body
        nodes = branch if isinstance(branch, list) else [branch]
        return any(mentions(inner, words) for node in nodes for inner in ast.walk(node))

    # ------------------------------------------------------------ across functions

    def climb(
        self, function: FunctionRef, flag: str | None, beyond: int = 0, seen: frozenset[int] = frozenset()
    ) -> Climb:
        """Follow a function to whoever calls it, up to where the flag is read and a little further.

        Past the function that reads the flag the code is the model's own: there only a decision on the GPU or the
        flag closes the way, and what is not understood counts only where it speaks of a device.
        """
        assert isinstance(function.node, FunctionNode)
        key = (id(function.node), beyond)
        if key in self._climbed:
            return self._climbed[key]
        if len(seen) >= _MAX_CLIMB or id(function.node) in seen or beyond > _MAX_BEYOND:
            return Climb("open", True)
        callers, is_common = self.callers(function)
        if is_common or (beyond and len(callers) > _MANY_CALLERS):
            return Climb("open", True)
        callers = [caller for caller in callers if id(caller.node) not in seen]
        if not callers:
            return Climb("open", self._is_entry(function))
        best: Climb | None = None
        hops: list[Reach] = []
        for caller in callers:
            hop = self.reach_call(caller, function, lenient=beyond > 0)
            past = beyond > 0
            reads_flag = past or any(f"setting:{flag}" in step.leaf.touched for step in [*hop.steps, *hop.closed])
            status = self._beyond_flag(hop) if past else hop.status
            above = Climb("closed", True)
            if status != "closed":
                above = self.climb(caller, flag, beyond + 1 if reads_flag else 0, seen | {id(function.node)})
                if not above.live:
                    continue
            here = Climb(min(status, above.status, key=_ORDER.__getitem__), True)
            hops += [hop, *above.hops]
            if best is None or _ORDER[here.status] > _ORDER[best.status]:
                best = here
        result = Climb(best.status, True, hops) if best is not None else Climb("closed", False)
        self._climbed[key] = result
        return result

    def _beyond_flag(self, hop: Reach) -> Status:
        if any("arch" in step.leaf.touched or step.leaf.touched & {"setting:"} for step in hop.closed):
            return "closed"
        doubtful = [step for step in hop.steps if step.opaque and not step.known]
        if any(_DEVICE_WORDS.search(" ".join(step.leaf.deps)) for step in doubtful):
            return "unknown"
        return "open"

    def reach_call(self, caller: FunctionRef, callee: FunctionRef, *, lenient: bool = False) -> Reach:
        name = callee.node.name  # type: ignore[union-attr]
        key = (id(caller.node), id(callee.node))
        if key not in self._reached:
            is_method = callee.owner is not None
            watch = Watch(
                functions=frozenset({id(callee.node)}),
                methods=frozenset({name}) if is_method else frozenset(),
                externals=frozenset({name}),
                words=self._names_for(caller.module, callee),
                lenient=lenient,
            )
            self._reached[key] = self.reach(caller, watch)
        return self._reached[key]

    def _names_for(self, module: Module, callee: FunctionRef) -> frozenset[str]:
        """What the function is called in a module: its name, and names that an import or assignment gives it there."""
        name = callee.node.name  # type: ignore[union-attr]
        names = {name}
        for node in module.nodes_naming(name):
            if isinstance(node, ast.alias) and node.name == name and node.asname:
                names.add(node.asname)
            if isinstance(node, ast.Assign) and any(mentions(part, frozenset(names)) for part in ast.walk(node.value)):
                names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        return frozenset(names)

    def callers(self, function: FunctionRef) -> tuple[list[FunctionRef], bool]:
        """The functions that call or hand on a function, and whether there are too many to follow."""
        assert isinstance(function.node, FunctionNode)
        name = function.node.name
        files = self.program.containing(name, "sglang")
        if len(files) > 4 * _MAX_CALLERS or name.startswith("__"):
            return [], True
        found: dict[int, FunctionRef] = {}
        for rel in files:
            module = self.program.module(rel)
            for node in module.nodes_naming(name):
                if not self._refers(module, node, function) or self._is_compared(module, node):
                    continue
                inside = module.enclosing_function(node)
                if inside is None or inside is function.node:
                    continue
                found[id(inside)] = self.interpreter.function(module, inside)
                if len(found) > _MAX_CALLERS:
                    return [], True
        return list(found.values()), False

    @staticmethod
    def _is_compared(module: Module, node: ast.AST) -> bool:
        """Whether a reference is only compared with something, not called or handed on."""
        parent = module.parent(node)
        while isinstance(parent, ast.expr):
            if isinstance(parent, ast.Call):
                return False
            if isinstance(parent, ast.Compare):
                return True
            parent = module.parent(parent)
        return False

    def _refers(self, module: Module, node: ast.AST, function: FunctionRef) -> bool:
        name = function.node.name  # type: ignore[union-attr]
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            if function.owner is not None:
                return False
            return self._same_function(module, node, function)
        if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load):
            base = ast.unparse(node.value)
            if function.owner is None:
                return base.startswith("torch.ops") or self._is_module_name(module, node.value, function.module)
            return self._may_be_method_of(module, node.value, function.owner)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            return len(node.args) > 1 and isinstance(node.args[1], ast.Constant) and node.args[1].value == name
        return False

    def _same_function(self, module: Module, node: ast.Name, function: FunctionRef) -> bool:
        """Whether a bare name means this function: by where it was bound, in the function around it or globally."""
        name = node.id
        inside = module.enclosing_function(node)
        while inside is not None:
            for statement in own_nodes(inside):
                if isinstance(statement, ast.ImportFrom):
                    for alias in statement.names:
                        if (alias.asname or alias.name) == name:
                            bound = self.interpreter.imported(import_source(module, statement), alias.name)
                            return getattr(bound.data, "node", None) is function.node
                if isinstance(statement, FunctionNode) and statement.name == name:
                    return statement is function.node
            inside = module.enclosing_function(inside)
        value = self.interpreter.lookup_global(module, name)
        if value is None:
            return False
        if isinstance(value.data, FunctionRef):
            return value.data.node is function.node
        return value.is_opaque or any(
            isinstance(o.data, FunctionRef) and o.data.node is function.node for o in value.options
        )

    def _may_be_method_of(self, module: Module, base: ast.expr, owner: ClassRef) -> bool:
        """Whether an object named so can be of this class: not where it is certainly of another."""
        if isinstance(base, ast.Name) and base.id in ("self", "cls"):
            around = module.enclosing_class_of(base)
            if around is None:
                return True
            here = ClassRef(module, around)
            return owner in self.interpreter.bases(here) or here in self.interpreter.bases(owner)
        if _is_dotted(base) and not ast.unparse(base).startswith(("self.", "cls.")):
            inside = module.enclosing_function(base)
            root = ast.unparse(base).partition(".")[0]
            if inside is not None and root in _local_names(inside):
                return True
            data = self.interpreter.evaluate(base, Frame(module, "<module>", {}, depth=2)).data
            if isinstance(data, ClassRef):
                return owner in self.interpreter.bases(data)
            if isinstance(data, External):
                return False
            if isinstance(data, Instance):
                return owner in self.interpreter.bases(data.cls)
        return True

    def _is_module_name(self, module: Module, node: ast.expr, wanted: Module) -> bool:
        value = self.interpreter.evaluate(node, Frame(module, "<module>", {}, depth=2)) if _is_dotted(node) else None
        data = value.data if value is not None else None
        return getattr(data, "module", None) is not None and not isinstance(data, External | FunctionRef)

    def _is_entry(self, function: FunctionRef) -> bool:
        """Whether a function that nothing calls by name can run all the same."""
        assert isinstance(function.node, FunctionNode)
        if function.owner is None:
            return bool(function.node.decorator_list) and function.module.enclosing_function(function.node) is None
        if not function.node.name.startswith(_CALLED_BY_OTHERS):
            return False
        return self._class_is_used(function)

    def _class_is_used(self, function: FunctionRef) -> bool:
        assert function.owner is not None
        name = function.owner.node.name
        for rel in self.program.containing(name, "sglang"):
            module = self.program.module(rel)
            for node in module.nodes_naming(name):
                if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                    return True
                if isinstance(node, ast.Attribute) and node.attr == name:
                    return True
        return False


def _local_names(function: FunctionNode) -> set[str]:
    arguments = function.args
    names = {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    return names | {n.id for n in own_nodes(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _is_dotted(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
