-- notation_braces.lua: the machine's events of braces, x{axis = index, ...}.
--
-- An index is either a sum of positions and a constant (a shift, a pick, a renaming) or a lookup by a value. Its nodes
-- are made first, as of any expression; make_entry then sees whether they are such a sum. The module is the table of
-- its events.
--
-- TRAPS. Where it is a sum, its nodes are taken back, and those of its constant part made anew: numbers of nodes behind
-- the opening of an entry hold until its end only.

local vocabulary = require "notation_words"
local machine = require "notation_build"

local MAX_AXES, fail = vocabulary.MAX_AXES, vocabulary.fail
local FIXED, PLACE = machine.FIXED, machine.PLACE
local emit, push, pop, finish = machine.emit, machine.push, machine.pop, machine.finish
local frame_of, node_of, type_of, join = machine.frame_of, machine.node_of, machine.type_of, machine.join
local is_axis, mention = machine.is_axis, machine.mention

local on = {}

function on.brace(b, pos)
  b.stack[#b.stack + 1] = { frame = "brace", pos = pos, value = pop(b), entries = {} }
  b.braces = b.braces + 1
end

function on.key(b, pos, name)
  local f = frame_of(b)
  if b.values[name] then
    fail(pos, "'%s' is a value, not an axis: braces put an index in the place of an axis", name)
  end
  mention(b, name, pos)
  for _, e in ipairs(f.entries) do
    if e[1] == name then fail(pos, "'%s' is replaced twice", name) end
  end
  f.key, f.mark = { name = name, pos = pos }, #b.op.nodes
end

-- Where the operands of a node made of numbers alone begin.
local function first_operand(node)
  if node[1] == "num" or node[1] == "scalar" or node[1] == "extent" or node[1] == "outer" then return #node + 1 end
  return node[1] == "fn" and 3 or 2
end

local function add_terms(terms, more, sign)
  for _, t in ipairs(more) do terms[#terms + 1] = { t[1], sign * t[2] } end
  return terms
end

-- For each node after `first` its sum of positions { { axis, +-1 }, ... }, {} for a fixed one; nil if one has none.
local function position_terms(b, first)
  local terms = {}
  local function of(i)
    if i > first then return terms[i] end
    return b.dep[i] == FIXED and {} or nil
  end
  for i = first + 1, #b.op.nodes do
    local node = node_of(b, i)
    local kind = node[1]
    if b.dep[i] == FIXED then terms[i] = {}
    elseif kind == "index" then terms[i] = { { node[2], 1 } }
    elseif kind == "neg" and of(node[2]) then terms[i] = add_terms({}, of(node[2]), -1)
    elseif (kind == "add" or kind == "sub") and of(node[2]) and of(node[3]) then
      terms[i] = add_terms(add_terms({}, of(node[2]), 1), of(node[3]), kind == "add" and 1 or -1)
    else return nil end
    if #terms[i] > MAX_AXES then return nil end
  end
  return terms
end

local function distinct(terms)
  local seen = {}
  for _, t in ipairs(terms) do
    if seen[t[1]] then return false end
    seen[t[1]] = true
  end
  return true
end

local function check_whole(b, i, pos)
  local type = type_of(b, i)
  if type == "float" then fail(pos, "a position is a whole number, and this is a fraction: int(x) cuts it off") end
  if type == "condition" then fail(pos, "a position is a whole number, and this is a condition") end
end

-- The constant parts of two operands, joined by kind; either may be nil.
local function join_constants(b, node, x, y)
  for _, c in ipairs { x or false, y or false } do
    if c then check_whole(b, c, node_of(b, c).pos) end
  end
  if not y then return x end
  if node[1] == "add" and not x then return y end
  local made = x and { node[1], x, y } or { "neg", y }
  made.pos = node.pos
  return emit(b, made, x and join(type_of(b, x), type_of(b, y)) or type_of(b, y), FIXED)
end

-- Takes back the nodes after `first` and makes those anew that the constant of the sum needs. Returns its node or nil.
local function keep_constants(b, first, root, terms)
  local nodes = b.op.nodes
  local taken = table.move(nodes, first + 1, #nodes, 1, {})
  local deps = table.move(b.dep, first + 1, #nodes, 1, {})
  for i = #nodes, first + 1, -1 do nodes[i], b.dep[i] = nil, nil end
  local constant = {}                    -- old node -> new one, of its constant part
  local function of(i) if i > first then return constant[i] end return i end
  for k, node in ipairs(taken) do
    local i = first + k
    if deps[k] == FIXED then
      for j = first_operand(node), #node do node[j] = of(node[j]) end
      constant[i] = emit(b, node, node.type, FIXED)
    elseif node[1] == "neg" then
      constant[i] = of(node[2]) and join_constants(b, { "sub", pos = node.pos }, nil, of(node[2]))
    elseif node[1] ~= "index" then
      constant[i] = join_constants(b, node, of(node[2]), of(node[3]))
    end
  end
  return of(root)
end

-- The entry for axis = v, where the nodes after `first` are those of v alone.
local function make_entry(b, key, first, v)
  local entry = { key.name, pos = key.pos }
  local all = position_terms(b, first)
  local terms = all and (v.node > first and all[v.node] or b.dep[v.node] == FIXED and {})
  if terms and distinct(terms) then
    if #terms == 0 then check_whole(b, v.node, v.start) end
    entry.terms, entry.const = terms, keep_constants(b, first, v.node, all)
  else
    check_whole(b, v.node, v.start)
    entry.index = v.node
  end
  return entry
end

-- x{seq = key} makes the axis key, unless it is one already.
local function note_rename(b, entry, pos)
  local terms = entry.terms
  if not terms or #terms ~= 1 or terms[1][2] ~= 1 or entry.const then return end
  local name = terms[1][1]
  if b.axes[name] or b.outer and is_axis(b.outer, name) then return end
  b.renames[#b.renames + 1] = { from = entry[1], to = name, pos = pos }
  b.made[name] = true
end

function on.entry(b)
  local v = finish(b)
  local f = frame_of(b)
  local entry = make_entry(b, f.key, f.mark, v)
  note_rename(b, entry, v.start)
  f.entries[#f.entries + 1] = entry
end

function on.brace_end(b)
  local f = table.remove(b.stack)
  b.braces = b.braces - 1
  local a, dep = f.value, math.max(b.dep[f.value.node], PLACE)
  for _, e in ipairs(f.entries) do
    if e.index then dep = math.max(dep, b.dep[e.index]) end
  end
  push(b, emit(b, { "at", a.node, f.entries, pos = f.pos }, type_of(b, a.node), dep), a.start)
end

return on
