-- notation_define.lua: a whole definition: the machine's events of header and body, and what is checked at its end.
--
--   define.build(d, clean, ops, later, above)   d of notation_scan's split, above: the builder of the definition before
--   define.check_used(b)                        once the gradient is read too, if there is one
--
-- build() matches the grammar and hands each event to its function.
--
-- TRAPS. The names of a body's lines are collected before the first event, for the message to one that uses a name too
-- early. Axes are checked at the end, since a renaming may come after their mention.

local vocabulary = require "notation_words"
local definition = require "notation_grammar"
local machine = require "notation_build"
local calls = require "notation_calls"
local braces = require "notation_braces"

local MAX_AXES, MAX_NODES = vocabulary.MAX_AXES, vocabulary.MAX_NODES
local fail, suggest, plural = vocabulary.fail, vocabulary.suggest, vocabulary.plural
local reserved, check_axis_name = vocabulary.reserved, vocabulary.check_axis_name
local FIXED, PLACE, TENSOR, DEFAULT_ALONE = machine.FIXED, machine.PLACE, machine.TENSOR, machine.DEFAULT_ALONE
local new_builder, emit, finish, node_of = machine.new_builder, machine.emit, machine.finish, machine.node_of
local is_axis, check_free, declare, mention = machine.is_axis, machine.check_free, machine.declare, machine.mention
local need_number = machine.need_number

local on = {}
for _, events in ipairs { machine.on, calls, braces } do
  for kind, f in pairs(events) do on[kind] = f end
end

-- Header ------------------------------------------------------------------------------------------------------------

-- grad f(d) belongs to the definition just above it.
function on.grad(b, pos) b.grad_pos = pos end

function on.define(b, pos, name)
  if reserved(name) then fail(pos, "'%s' is a word of the notation: choose another name", name) end
  if b.grad_pos then
    local outer = b.above
    if not outer or outer.op.name ~= name then
      fail(b.grad_pos, "'grad %s' must follow the definition of %s in the same text%s", name, name,
        b.ops[name] and "" or suggest(name, b.ops))
    end
    if outer.op.grad then fail(b.grad_pos, "%s has its gradient already", name) end
    if #outer.op.updates > 0 then fail(b.grad_pos, "%s changes tensors, and so has no gradient", name) end
    b.outer, b.rest = outer, outer.rest
  elseif b.ops[name] then
    fail(pos, "the op '%s' is defined already, and op names are global: choose another name", name)
  end
  b.op = { name = name, pos = b.grad_pos or pos, axes = {}, params = {}, scalars = {}, nodes = {}, results = {},
           updates = {}, locals = {}, local_from = {} }
end

local GRAD_TENSORS = "a gradient takes one adjoint for each result and nothing else: it sees every name of its op"

function on.op_axis(b, pos, name)
  if b.outer then fail(pos, "%s", GRAD_TENSORS) end
  check_axis_name(name, pos)
  if b.axes[name] then fail(pos, "'%s' is listed twice", name) end
  b.axes[name], b.loose[name] = true, pos
  b.op.axes[#b.op.axes + 1] = name
end

function on.param(b, pos, name)
  local params = b.op.params
  check_free(b, name, pos)
  params[#params + 1] = { name = name, pos = pos }
  declare(b, name, pos, "tensor", emit(b, { "param", #params, pos = pos, name = name }, "number", TENSOR))
end

function on.param_axes(b)
  b.op.params[#b.op.params].axes = {}
  b.seen = {}
end

-- Notes an axis of the tensor being declared: each once, at most 16.
local function note_axis(b, pos, name)
  check_axis_name(name, pos)
  if b.seen[name] then fail(pos, "'%s' is listed twice: a tensor has each axis once", name) end
  b.seen[name], b.seen[#b.seen + 1] = true, true
  if #b.seen > MAX_AXES then fail(pos, "a value has at most %d axes", MAX_AXES) end
  if name == ".." then b.rest = true; return end
  if b.values[name] then fail(pos, "'%s' is the name of a tensor already: choose another name", name) end
  if b.outer then return mention(b, name, pos) end
  b.axes[name], b.loose[name] = true, nil
end

function on.axis(b, pos, name)
  local axes = b.op.params[#b.op.params].axes
  if name == ".." and b.outer and not b.rest then
    fail(pos, "'..' stands for the open axes of %s, which has none", b.op.name)
  end
  note_axis(b, pos, name)
  axes[#axes + 1] = { name = name, pos = pos }
end

function on.split(b, pos)
  local axes = b.op.params[#b.op.params].axes
  b.axis = axes[#axes]
  if b.axis.name == ".." then fail(pos, "'..' cannot be split: name the axis, as in head_dim = (two: 2, half)") end
  if b.outer then fail(pos, "an adjoint has the axes of its result: it is split there already") end
  b.axis.parts = {}
  table.remove(b.seen)                   -- the parts count instead
end

function on.part(b, pos, name)
  note_axis(b, pos, name)
  local parts = b.axis.parts
  parts[#parts + 1] = { name = name, pos = pos }
end

function on.size(b, pos, text)
  local parts = b.axis.parts
  local size = not text:find "[.eE]" and math.tointeger(tonumber(text))
  if not size or size < 1 then fail(pos, "a size is a whole number from 1, and '%s' is none", text) end
  parts[#parts].extent = size
end

local function check_splits(op)
  for _, param in ipairs(op.params) do
    for _, axis in ipairs(param.axes or {}) do
      local open = 0
      for _, part in ipairs(axis.parts or {}) do
        open = open + (part.extent and 0 or 1)
        if open > 1 then fail(part.pos, "at most one part is without a size: write %s: 2", part.name) end
      end
    end
  end
end

-- The node of a scalar comes after those of its default.
local function end_scalar(b)
  local s = b.scalar
  if not s then return end
  b.scalar = nil
  declare(b, s.name, s.pos, "scalar", emit(b, { "scalar", #b.op.scalars, pos = s.pos, name = s.name }, "number", FIXED))
end

function on.scalar(b, pos, name)
  end_scalar(b)
  if b.outer then fail(pos, "%s", GRAD_TENSORS) end
  check_free(b, name, pos)
  b.scalar = { name = name, pos = pos }
  b.op.scalars[#b.op.scalars + 1] = b.scalar
end

function on.default(b) b.in_default = true end

function on.default_end(b)
  local v = finish(b)
  need_number(b, v, DEFAULT_ALONE)
  if b.dep[v.node] >= PLACE then fail(v.start, "%s", DEFAULT_ALONE) end
  b.scalar.default, b.in_default = v.node, false
end

function on.header_end(b)
  end_scalar(b)
  check_splits(b.op)
  local outer = b.outer and b.outer.op
  if outer and #b.op.params ~= #outer.results then
    local results = plural(#outer.results, "result")
    fail(b.op.pos, "%s has %s, so its gradient takes as many adjoints, not %d", outer.name, results, #b.op.params)
  end
end

-- Body --------------------------------------------------------------------------------------------------------------

function on.statement(b, pos)
  if b.result_line then
    if b.clean:sub(pos, pos) == "-" then
      fail(pos, "this line begins with '-' and stands by itself: to go on, end the line above with '-'")
    end
    fail(b.result_line, "this line is the result, and more lines follow: name it, as in y = ..., or put it last")
  end
  b.statements[#b.statements + 1] = pos
end

function on.line(b, pos, name)
  check_free(b, name, pos)
  b.line = { name = name, pos = pos }
end

function on.update(b, pos, name)
  local param = b.values[name]
  if b.outer then fail(pos, "a gradient changes no tensors: write %s without the prime", name) end
  if not param or param.kind ~= "tensor" then
    local near = param and "" or suggest(name, b.values)
    fail(pos, "'%s' is not a tensor of the header, and only these get a new value%s", name, near)
  end
  if b.values[name .. "'"] then fail(pos, "%s' has a value already: all updates of an op happen at once", name) end
  param.used = true
  b.line = { name = name .. "'", pos = pos, param = node_of(b, param.node)[2] }
end

function on.line_end(b)
  local v, line = finish(b), b.line
  local node = node_of(b, v.node)
  if not node.name then node.name = line.name end
  if line.param then
    need_number(b, v)
    b.op.updates[#b.op.updates + 1] = { line.param, v.node }
  elseif b.made[line.name] then            -- the line's own expression renames to its name
    fail(line.pos, "'%s' is the name of an axis already: choose another name", line.name)
  end
  declare(b, line.name, line.pos, line.param and "update" or "line", v.node)
end

function on.result(b)
  local v, results = finish(b), b.op.results
  results[#results + 1] = v.node
  b.result_line = b.statements[#b.statements]
  if b.outer then need_number(b, v) end
end

------------------------------------------------------------------------------------------------------------------------
-- The end of a definition

local function check_results(b)
  local op = b.op
  if #op.results == 0 and #op.updates == 0 then
    local last = b.named[#b.named]
    fail(last.pos, "%s has no result: the last line must be one, without the name '%s' and '='", op.name, last.name)
  end
  if b.outer and #op.results ~= #b.outer.op.params then
    fail(b.result_line, "a gradient gives one value for each tensor, 0 for none: %s has %s, and here %s", op.name,
      plural(#b.outer.op.params, "tensor"), #op.results == 1 and "is 1 value" or "are " .. #op.results .. " values")
  end
end

local function check_mentions(b)
  for _, m in ipairs(b.mentions) do
    if not is_axis(b, m.name) then
      local outer = b.outer or { axes = {}, made = {} }
      local near = suggest(m.name, b.axes, b.made, outer.axes, outer.made)
      local value = suggest(m.name, b.values, outer.values or {})
      if near == "" and value ~= "" then
        fail(m.pos, "'%s' is neither a value nor an axis of this op%s", m.name, value)
      end
      fail(m.pos, "'%s' is not an axis of this op: name it in the header%s", m.name, near)
    end
  end
end

-- Orders the axes that renamings make so that each gets its size from one before it.
local function order_locals(b)
  local op, sized = b.op, {}
  local function has_size(name) return sized[name] or b.axes[name] or b.outer and is_axis(b.outer, name) end
  local again = true
  while again do
    again = false
    for _, r in ipairs(b.renames) do
      if not sized[r.to] and has_size(r.from) then
        sized[r.to], again = true, true
        op.locals[#op.locals + 1], op.local_from[#op.local_from + 1] = r.to, r.from
      end
    end
  end
  for _, r in ipairs(b.renames) do
    if not sized[r.to] then fail(r.pos, "the axis '%s' gets its size from '%s', which has none", r.to, r.from) end
  end
end

local function count_nodes(op, ops)
  local size = 0
  for _, node in ipairs(op.nodes) do
    size = size + (node[1] == "op" and ops[node[2]].size or 1)
    if size > MAX_NODES then
      fail(node.pos, "an op has at most %d nodes, the ops it calls written out: break it into several", MAX_NODES)
    end
  end
  op.size = size
end

-- Checked after the op's gradient, if it has one: it may use what the op does not.
local function check_used(b)
  for _, v in ipairs(b.named) do
    if not v.used then
      local after = b.statements[v.statement + 1]
      if v.kind == "line" and after and b.clean:sub(after, after) == "-" then
        fail(v.pos, "'%s' is never used: the next line begins with '-' and stands by itself; "
          .. "to go on, end this line with '-'", v.name)
      end
      fail(v.pos, "'%s' is never used: use it or take it out", v.name)
    end
  end
  for _, axis in ipairs(b.op.axes) do
    if b.loose[axis] then fail(b.loose[axis], "the axis '%s' is never used: use it or take it out", axis) end
  end
end

local function build(d, clean, ops, later, above)
  local b = new_builder(clean, ops, later)
  b.above, b.lines = above, {}
  local base = d.pos - 1
  local events = definition:match(clean:sub(d.pos, d.stop), 1, base)
  for i = 1, #events, 3 do
    if events[i + 1] == "line" then b.lines[events[i + 2]] = true end
  end
  for i = 1, #events, 3 do on[events[i + 1]](b, base + events[i], events[i + 2]) end
  check_results(b)
  check_mentions(b)
  order_locals(b)
  count_nodes(b.op, ops)
  return b
end

return { build = build, check_used = check_used }
