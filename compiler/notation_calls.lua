-- notation_calls.lua: the machine's events of calls: functions, reductions, random, and ops by name.
--
-- The opening pushes a frame; axes, arguments and scalars gather in it; call_end checks them against what is called and
-- makes the node. The module is the table of its events.
--
-- TRAPS. max and min are functions of two values, and reductions where they have axes. An op's result may vary in ways
-- that are known at the call from Lua only: its dependence is UNKNOWN, which is less than PLACE.

local vocabulary = require "notation_words"
local machine = require "notation_build"

local ARITY, REDUCES, KEEPS_TYPE = vocabulary.ARITY, vocabulary.REDUCES, vocabulary.KEEPS_TYPE
local MAX_AXES, reserved, usage = vocabulary.MAX_AXES, vocabulary.reserved, vocabulary.usage
local fail, suggest, plural = vocabulary.fail, vocabulary.suggest, vocabulary.plural
local FIXED, UNKNOWN, PLACE, RANDOM = machine.FIXED, machine.UNKNOWN, machine.PLACE, machine.RANDOM
local emit, push, finish = machine.emit, machine.push, machine.finish
local frame_of, type_of = machine.frame_of, machine.type_of
local join, need_number, need_condition = machine.join, machine.need_number, machine.need_condition
local mention, resolve = machine.mention, machine.resolve

local on = {}

function on.call(b, pos, name)
  b.stack[#b.stack + 1] = { frame = "call", name = name, pos = pos, axes = {}, axis_pos = {}, args = {}, given = {} }
end

function on.call_axis(b, pos, name)
  local f = frame_of(b)
  if name == ".." then
    if not b.rest then
      fail(pos, "'..' stands for the open axes of the header, and no tensor here has them: write x[..]")
    end
  else
    if b.values[name] then fail(pos, "'%s' is a value, not an axis: brackets list axes", name) end
    mention(b, name, pos)
  end
  for _, other in ipairs(f.axes) do
    if other == name then fail(pos, "'%s' is listed twice", name) end
  end
  if #f.axes == MAX_AXES then fail(pos, "a value has at most %d axes", MAX_AXES) end
  f.axes[#f.axes + 1], f.axis_pos[#f.axes + 1] = name, pos
end

function on.arg(b)
  local v = finish(b)
  local f = frame_of(b)
  f.args[#f.args + 1] = v
end

function on.given(b, pos, name) frame_of(b).pending = { name = name, pos = pos } end

local function give(b, v)
  local f = frame_of(b)
  local g = f.pending
  for _, other in ipairs(f.given) do
    if other.name == g.name then fail(g.pos, "'%s' is given twice", g.name) end
  end
  need_number(b, v)
  if b.dep[v.node] >= PLACE then fail(v.start, "'%s' is a scalar: it takes no tensor, index or random", g.name) end
  f.given[#f.given + 1] = { name = g.name, pos = g.pos, node = v.node }
end

function on.given_value(b) give(b, finish(b)) end

function on.given_short(b)
  local g = frame_of(b).pending
  give(b, { node = resolve(b, g.name, g.pos), start = g.pos })
end

local function need_args(f, count)
  if #f.args ~= count then
    fail(f.pos, "%s takes %s, %s given: write %s", f.name, plural(count, "argument"), #f.args, usage(f.name))
  end
end

local function max_dep(b, args, least)
  local dep = least
  for _, v in ipairs(args) do dep = math.max(dep, b.dep[v.node]) end
  return dep
end

local function make_reduce(b, f)
  need_args(f, 1)
  local v = f.args[1]
  need_number(b, v)
  local type = f.name == "mean" and "float" or type_of(b, v.node)
  return emit(b, { "reduce", f.name, f.axes, v.node, pos = f.pos }, type, max_dep(b, f.args, PLACE))
end

local function make_random(b, f)
  if #f.axes == 0 then fail(f.pos, "random needs the axes it varies along: write random[axis](), or random[..]()") end
  need_args(f, 0)
  return emit(b, { "random", f.axes, pos = f.pos }, "float", RANDOM)
end

local function make_fn(b, f)
  local name, args = f.name, f.args
  if #f.axes > 0 then fail(f.axis_pos[1], "%s takes no axes: write %s", name, usage(name)) end
  need_args(f, ARITY[name])
  local type = "float"
  if name == "int" then type = "whole" end
  for i, v in ipairs(args) do
    if name == "where" and i == 1 then need_condition(b, v, "where(condition, a, b)") else need_number(b, v) end
  end
  if KEEPS_TYPE[name] then
    type = type_of(b, args[#args].node)
    if #args > 1 then type = join(type_of(b, args[#args - 1].node), type) end
  end
  local dep = max_dep(b, args, FIXED)
  if name == "const" and dep == RANDOM then
    fail(args[1].start, "const is computed once, before the first step, and takes no random")
  end
  local node = { "fn", name, pos = f.pos }
  for i, v in ipairs(args) do node[i + 2] = v.node end
  return emit(b, node, type, dep)
end

-- How an op is called, for messages: softmax[k](x), softcap(x; cap).
local function signature(op)
  local function names(items)
    local t = {}
    for i, item in ipairs(items) do t[i] = type(item) == "string" and item or item.name end
    return table.concat(t, ", ")
  end
  local axes = #op.axes > 0 and "[" .. names(op.axes) .. "]" or ""
  local needed = {}
  for _, s in ipairs(op.scalars) do
    if not s.default then needed[#needed + 1] = s end
  end
  return ("%s%s(%s%s)"):format(op.name, axes, names(op.params), #needed > 0 and "; " .. names(needed) or "")
end

local function unknown_op(b, f)
  local name, pos = f.name, f.pos
  if reserved(name) then fail(pos, "'%s' is a word of the notation, not an op", name) end
  if name == b.op.name then fail(pos, "'%s' cannot call itself", name) end
  if b.later[name] then fail(pos, "'%s' is defined further down: an op must be defined before it is called", name) end
  if b.values[name] or b.outer and b.outer.values[name] then
    fail(pos, "'%s' is a value, not an op: to multiply, write %s * (...)", name, name)
  end
  fail(pos, "no op '%s' is defined%s", name, suggest(name, b.ops, ARITY, REDUCES, { random = true }))
end

local function check_op_call(f, op)
  if #op.results == 0 or #op.updates > 0 then
    fail(f.pos, "%s changes tensors: it can be called from Lua only", f.name)
  end
  if #op.results > 1 then
    fail(f.pos, "%s has %d results, and an expression takes one: call it from Lua, where they come out in order",
      f.name, #op.results)
  end
  for i, axis in ipairs(f.axes) do
    if axis == ".." then
      fail(f.axis_pos[i], "%s takes one axis by name, and '..' is none: write %s", f.name, signature(op))
    end
  end
  if #f.axes ~= #op.axes then
    local takes = #op.axes == 1 and "1 axis" or #op.axes .. " axes"
    fail(f.pos, "%s takes %s in brackets, %d given: write %s", f.name, takes, #f.axes, signature(op))
  end
  if #f.args ~= #op.params then
    fail(f.pos, "%s takes %s, %d given: write %s", f.name, plural(#op.params, "tensor"), #f.args, signature(op))
  end
end

local function check_given(f, op)
  local known, given_names = {}, {}
  for _, s in ipairs(op.scalars) do known[s.name] = true end
  for _, g in ipairs(f.given) do
    if not known[g.name] then
      local near = suggest(g.name, known)
      fail(g.pos, "%s has no scalar '%s'%s", f.name, g.name, near == "" and ": its call is " .. signature(op) or near)
    end
    given_names[g.name] = true
  end
  for _, s in ipairs(op.scalars) do
    if not s.default and not given_names[s.name] then
      fail(f.pos, "%s needs the scalar '%s': write %s", f.name, s.name, signature(op))
    end
  end
end

local function make_op(b, f)
  local op = b.ops[f.name]
  if not op then unknown_op(b, f) end
  check_op_call(f, op)
  check_given(f, op)
  local node = { "op", f.name, axes = f.axes, args = {}, given = {}, pos = f.pos }
  for i, v in ipairs(f.args) do
    need_number(b, v)
    node.args[i] = v.node
  end
  for i, g in ipairs(f.given) do node.given[i] = { g.name, g.node } end
  return emit(b, node, op.nodes[op.results[1]].type, UNKNOWN)
end

function on.call_end(b)
  local f = table.remove(b.stack)
  local name = f.name
  local builtin = ARITY[name] or REDUCES[name] or name == "random"
  if builtin and #f.given > 0 then fail(f.given[1].pos, "%s takes no scalars: write %s", name, usage(name)) end
  local node
  if REDUCES[name] and #f.axes > 0 then node = make_reduce(b, f)
  elseif ARITY[name] then node = make_fn(b, f)
  elseif REDUCES[name] then fail(f.pos, "%s needs the axes it goes over: write %s[axis](x)", name, name)
  elseif name == "random" then node = make_random(b, f)
  else node = make_op(b, f) end
  push(b, node, f.pos)
end

return on
