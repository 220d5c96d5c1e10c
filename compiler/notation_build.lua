-- notation_build.lua: the machine that makes nodes of events: its state, names, kinds of value, operators.
--
-- `on` has a function for each kind of event: on.KIND(b, pos, text). Here are those of operators and operands; calls,
-- braces, and headers with bodies have files of their own (notation_calls, notation_braces, notation_define), which
-- need this one and nothing of each other. Operators wait on a stack until one that binds less tightly follows, so
-- nodes are made in order of evaluation and nothing recurses.
--
-- A builder b holds what is known of the op being read:
--   op, clean (the text), ops (name -> op, callable), later (names of ops further down)
--   values   name -> { node, pos, kind = "tensor" | "scalar" | "line" | "update", used }     named: those in order
--   axes     header axes: name -> true          rest: a tensor has '..'      loose: bracket axes not mentioned yet
--   mentions { name, pos } of axes, checked at the end, since a renaming may come after them
--   renames  { from, to, pos }                  made: their new names, name -> true
--   outer    in a grad, the builder of its op
--   stack    operators and frames               vals: operands { node, start }
--   dep      node -> how it may vary: FIXED, UNKNOWN (an op's result), PLACE (index), TENSOR, RANDOM
--
-- TRAPS. A frame on the stack is a bracket: apply() stops there, and finish() takes the one operand above it. The nodes
-- of an index are taken back where it is a sum of positions (make_entry), so nothing may remember a node that is made
-- inside braces.

local vocabulary = require "notation_words"

local ARITY, REDUCES, BINARY = vocabulary.ARITY, vocabulary.REDUCES, vocabulary.BINARY
local COMPARE, PREFIX = vocabulary.COMPARE, vocabulary.PREFIX
local reserved, usage, suggest = vocabulary.reserved, vocabulary.usage, vocabulary.suggest
local fail, check_axis_name = vocabulary.fail, vocabulary.check_axis_name

local FIXED, UNKNOWN, PLACE, TENSOR, RANDOM = 0, 1, 2, 3, 4
local DEFAULT_ALONE = "a default is one number, made of numbers, extents and the scalars before it"

local function new_builder(clean, ops, later)
  return { clean = clean, ops = ops, later = later, values = {}, named = {}, axes = {}, rest = false, loose = {},
           mentions = {}, renames = {}, made = {}, stack = {}, vals = {}, dep = {}, braces = 0, statements = {} }
end

local function emit(b, node, type, dep)
  local nodes = b.op.nodes
  node.type = type
  nodes[#nodes + 1], b.dep[#nodes + 1] = node, dep
  return #nodes
end

local function push(b, node, start) b.vals[#b.vals + 1] = { node = node, start = start } end
local function pop(b) return table.remove(b.vals) end
local function frame_of(b) return b.stack[#b.stack] end
local function node_of(b, i) return b.op.nodes[i] end
local function type_of(b, i) return b.op.nodes[i].type end

-- Kinds of value ----------------------------------------------------------------------------------------------------

local function join(s, t)
  if s == t then return s end
  return (s == "float" or t == "float") and "float" or "number"
end

local function need_number(b, v, hint)
  if type_of(b, v.node) == "condition" then
    fail(v.start, "this is a condition, not a number: %s", hint or "write where(condition, 1, 0)")
  end
end

local function need_condition(b, v, who)
  if type_of(b, v.node) ~= "condition" then
    fail(v.start, "%s takes conditions, and this is a number: compare it, as in x > 0", who)
  end
end

-- Names -------------------------------------------------------------------------------------------------------------

local function is_axis(b, name)
  return b.axes[name] or b.made[name] or b.outer and is_axis(b.outer, name)
end

local function check_free(b, name, pos)
  if reserved(name) then fail(pos, "'%s' is a word of the notation: choose another name", name) end
  local v = b.values[name] or b.outer and b.outer.values[name]
  if v then
    local kind = (v.kind == "line" or v.kind == "update") and "line" or v.kind
    fail(pos, "'%s' is the name of a %s already: a name is given once (== compares)", name, kind)
  end
  if is_axis(b, name) then fail(pos, "'%s' is the name of an axis already: choose another name", name) end
end

local function declare(b, name, pos, kind, node)
  local v = { name = name, node = node, pos = pos, kind = kind, used = kind == "update", statement = #b.statements }
  b.values[name], b.named[#b.named + 1] = v, v
  return v
end

local function mention(b, name, pos)
  check_axis_name(name, pos)
  b.mentions[#b.mentions + 1] = { name = name, pos = pos }
  b.loose[name] = nil
  if b.outer then b.outer.loose[name] = nil end
end

local function unknown_value(b, name, pos)
  if reserved(name) then
    if ARITY[name] or REDUCES[name] then fail(pos, "'%s' is a function: write %s", name, usage(name)) end
    fail(pos, "'%s' is a word of the notation, not a value", name)
  end
  if is_axis(b, name) then
    fail(pos, "'%s' is an axis, not a value: its position is index(%s), its size extent(%s)", name, name, name)
  end
  if b.in_default then fail(pos, "'%s' is not a scalar before this one: %s", name, DEFAULT_ALONE) end
  if b.lines[name] then fail(pos, "'%s' has no value yet: its line comes further down", name) end
  local near = suggest(name, b.values, b.outer and b.outer.values or {})
  if near == "" and b.ops[name] then fail(pos, "'%s' is an op, not a value: call it, as in %s(...)", name, name) end
  fail(pos, "'%s' is not a value of this op%s", name, near)
end

-- The node of a name; inside braces an axis name is its position.
local function resolve(b, name, pos)
  local v = b.values[name]
  if v then
    if b.in_default and v.kind == "tensor" then fail(pos, "'%s' is a tensor: %s", name, DEFAULT_ALONE) end
    v.used = true
    return v.node
  end
  v = b.outer and b.outer.values[name]
  if v then
    v.used = true
    local inner = node_of(b.outer, v.node)
    return emit(b, { "outer", v.node, pos = pos, name = name }, inner.type, b.outer.dep[v.node])
  end
  if b.braces > 0 and not reserved(name) then
    mention(b, name, pos)
    return emit(b, { "index", name, pos = pos }, "whole", PLACE)
  end
  unknown_value(b, name, pos)
end

-- Operators ---------------------------------------------------------------------------------------------------------

local function make_prefix(b, op)
  local a = pop(b)
  if op.kind == "not" then need_condition(b, a, "'not'") else need_number(b, a) end
  push(b, emit(b, { op.kind, a.node, pos = op.pos }, type_of(b, a.node), b.dep[a.node]), op.pos)
end

local function binary_type(b, op, x, y)
  if op.kind == "and" or op.kind == "or" then
    need_condition(b, x, "'" .. op.kind .. "'")
    need_condition(b, y, "'" .. op.kind .. "'")
    return "condition"
  elseif op.prec == COMPARE then
    local hint = node_of(b, x.node)[1] == "not" and "write not (a < b)" or "join conditions by and, or, not"
    need_number(b, x, hint)
    need_number(b, y, hint)
    return "condition"
  end
  need_number(b, x)
  need_number(b, y)
  if op.kind == "div" or op.kind == "pow" then return "float" end
  return join(type_of(b, x.node), type_of(b, y.node))
end

local function make_binary(b, op)
  local y, x = pop(b), pop(b)
  local type = binary_type(b, op, x, y)
  local first, second = x.node, y.node
  if op.swap then first, second = second, first end
  local dep = math.max(b.dep[first], b.dep[second])
  push(b, emit(b, { op.kind, first, second, pos = op.pos }, type, dep), x.start)
end

-- Applies the operators on top of the stack that bind at least as tightly as prec (for a right-associative one: more).
local function apply(b, prec, right)
  while true do
    local top = b.stack[#b.stack]
    if not top or top.frame or top.prec < prec or right and top.prec == prec then return end
    b.stack[#b.stack] = nil
    if top.prefix then make_prefix(b, top) else make_binary(b, top) end
  end
end

-- The operand that the expression since the last frame amounts to.
local function finish(b)
  apply(b, 0)
  return pop(b)
end

local on = {}

function on.prefix(b, pos, text)
  b.stack[#b.stack + 1] = { prec = PREFIX, kind = text == "-" and "neg" or "not", prefix = true, pos = pos }
end

function on.binary(b, pos, text)
  local op = BINARY[text]
  apply(b, op[1] == COMPARE and COMPARE + 1 or op[1], op.right)
  local top = b.stack[#b.stack]
  if op[1] == COMPARE and top and top.prec == COMPARE then
    fail(pos, "comparisons do not chain: write a < b and b < c")
  end
  b.stack[#b.stack + 1] = { prec = op[1], kind = op[2], swap = op.swap, pos = pos }
end

function on.number(b, pos, text)
  local constant = text == "inf" and math.huge or text == "pi" and math.pi
  local whole = not constant and not text:find "[.eE]"
  local node = { "num", constant or tonumber(text) + 0.0, whole = whole, pos = pos }
  push(b, emit(b, node, whole and "whole" or "float", FIXED), pos)
end

function on.open(b, pos) b.stack[#b.stack + 1] = { frame = "paren", pos = pos } end

function on.close(b)
  local v = finish(b)
  local frame = table.remove(b.stack)
  push(b, v.node, frame.pos)
end

function on.place(b, pos, text) b.place = { kind = text, pos = pos } end

function on.place_axis(b, pos, name)
  local p = b.place
  if b.values[name] then fail(pos, "'%s' is a value, not an axis", name) end
  mention(b, name, pos)
  push(b, emit(b, { p.kind, name, pos = p.pos }, "whole", p.kind == "index" and PLACE or FIXED), p.pos)
end

function on.value(b, pos, name) push(b, resolve(b, name, pos), pos) end

function on.primed(b, pos, name)
  local new, old = b.values[name .. "'"], b.values[name]
  if new then return push(b, new.node, pos) end
  if old and old.kind == "tensor" and not b.outer then
    fail(pos, "%s' has no value yet: it gets one on a line of its own, %s' = ..., above", name, name)
  end
  local near = old and "" or suggest(name, b.values)
  fail(pos, "%s' is not a value: only a tensor of the header has a new value%s", name, near)
end

return {
  FIXED = FIXED, UNKNOWN = UNKNOWN, PLACE = PLACE, TENSOR = TENSOR, RANDOM = RANDOM, DEFAULT_ALONE = DEFAULT_ALONE,
  new_builder = new_builder, emit = emit, push = push, pop = pop, finish = finish,
  frame_of = frame_of, node_of = node_of, type_of = type_of,
  join = join, need_number = need_number, need_condition = need_condition,
  is_axis = is_axis, check_free = check_free, declare = declare, mention = mention, resolve = resolve,
  on = on,
}
