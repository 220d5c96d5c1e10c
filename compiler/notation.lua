-- notation.lua: the index notation, from text to flat op tables.
--
--   notation.parse(text, known)   -> { op, ... }          or nil, { pos = byte offset from 1, message = one sentence }
--   notation.axis_list(text)      -> { item, ... }        or nil, the same kind of error
--   notation.locate(text, pos)    -> line, column, source line
--
-- `known` is a table from name to op of what is defined already: these may be called, and may not be defined again.
-- It is read, never written; the ops of one text see those above them. 1 <= err.pos <= #text + 1.
--
-- THE OP TABLE (what compiler/front_op.c walks). Every index is 1-based, every list is a plain array without holes, and
-- every `pos` is a byte offset into the text. A field marked ? may be absent; no other may.
--
--   op     name  pos  axes  params  scalars  nodes  results  updates  locals  local_from  size  grad?
--     axes        { "k", ... }            bracket axes of the header, {} for none
--     params      { param, ... }          tensors in order; in a grad the adjoints, one for each result of its op
--     scalars     { scalar, ... }
--     nodes       { node, ... }           in order of evaluation: a node refers to earlier ones only
--     results     { node, ... }           {} where the op only updates
--     updates     { { param, node }, ... }  `x' = ...`, in text order; param is an index into params
--     locals      { "key", ... }          axes that renamings make, ordered so that each gets its size from a header
--                                         axis or an earlier local
--     local_from  { "seq", ... }          parallel to locals: key has the size of seq (a shorter one is C's to check)
--     size        integer                 number of nodes once the calls are written out, at most 4096
--     grad        op                      `grad f(d) = ...`; its axes, scalars and updates are {}, it has one result
--                                         for each tensor of f, and it names f's axes and locals without declaring them
--   param  name  pos  axes?               axes absent: any axes (`x`); {}: none (`x[]`)
--     axes        { axis, ... }
--   axis   name  pos  parts?              name ".." is the axes left open
--     parts       { { name, pos, extent? }, ... }   `head_dim = (two: 2, half)`: fields by name, first part slowest, at
--                                         least two, at most one without extent
--   scalar name  pos  default?            default: the node of its default; absent: the caller must give it
--
-- THE NODES. A node is an array { kind, operand, ... } with named fields for the rest:
--     pos         of the operator, function or name, or of the `{` of braces
--     name?       the name the text gives it: of its param, scalar or outer, or of its line (of an update: "m'")
--     type        "float", "whole", "condition", or "number": whole or float, as the arguments of the call decide
-- Nodes 1 .. #params are the params in order. Then follow, for each scalar, the nodes of its default, if it has one,
-- and the scalar's own node; then the body. A param or scalar has one node however often it is mentioned.
--
--     { "num", v }                 v a Lua float. `whole` = true for `2`, false for `2.0`, `1e-6`, inf, pi
--     { "param", i }               i an index into params
--     { "scalar", i }              i an index into scalars; if not given, the value of its default
--     { "index", "seq" }           position on an axis          { "extent", "seq" }   its size
--     { "random", { axes } }       axes: names, ".." among them at most once; never empty
--     { "outer", n }               in a grad only: node n of the op it belongs to; one node for each mention
--     { "neg", a }  { "not", a }
--     { "add", a, b }  "sub"  "mul"  "div"  "pow"
--     { "lt", a, b }  "le"  "eq"  "ne"      a > b is lt b a, a >= b is le b a (a is still evaluated first)
--     { "and", a, b }  { "or", a, b }
--     { "fn", "exp", a }           one operand: exp log sqrt rsqrt tanh sigmoid erf sin cos abs sign floor int f32 bf16
--                                  stop_gradient const; two: max min; three: where (condition, a, b)
--     { "reduce", "sum", { axes }, a }      "sum" "mean" "max" "min"; axes as for random
--     { "op", "softmax", axes = { names }, args = { nodes }, given = { { "eps", node }, ... } }
--                                  axes and args: as many as the op has, in order; given: in the order written, every
--                                  scalar without a default among them. The op has one result and no updates.
--     { "at", a, { entry, ... } }  a{axis = ..., ...}, all put in at once; each axis once
--       entry { "seq", pos=, terms = { { "seq", 1 }, { "tap", -1 } }, const? = node }
--                                  a sum of positions, each axis once with factor 1 or -1, plus const, a node free of
--                                  tensors, index and random. terms {} : pick. One term of factor 1, no const: renaming
--       entry { "vocab", pos=, index = node }   everything else: a lookup by a value
--
--   causal_conv   1 param 1   2 param 2   3 param 3   4 num 1   5 extent tap   6 sub 4 5
--                 7 at 1 { seq: terms seq +1, tap +1; const 6 }   8 mul 7 2   9 reduce sum {tap} 8   10 add 9 3
--                 results 10
--
--   axis_list item   { name =, pos =, extent? = }  |  { one = true, pos = }  |  { group = { item, ... }, pos = }
--
-- What is checked here is all that the text alone tells: words, names, arity, use, kinds of value as far as `type`
-- knows, and that every axis is named somewhere. Left to the call: which axes an argument has, binding, sizes, a
-- "number" that turns out a fraction in an index, a local axis left in a result, tensors inside const (a param may be
-- given as a function of index), one axis split in two ways.
--
-- HOW. Three steps for each text, none of which recurses on what the text contains:
--     scan      notation_scan: characters, numbers, brackets, limits; blanks comments and joined lines without moving
--               an offset
--     grammar   notation_grammar: LPeg, one definition at a time, to a flat list of events (pos, kind, text). Only
--               brackets nest, and scan allows 64
--     machine   notation_define: a function for each kind of event, and a stack of operators that makes nodes in order.
--               notation_build has its state, names and operators, notation_calls and notation_braces their events
-- notation_words has the vocabulary and the errors, notation_axes the axis lists. A file requires what stands to its
-- right only:  notation, define, calls and braces, build, grammar and axes, scan, words.
--
-- TRAPS. The files are built into picoc, where require finds them and lpeg and nothing else (compiler/front.c).

local vocabulary = require "notation_words"
local scan = require "notation_scan"
local define = require "notation_define"
local axis_list = require "notation_axes"

local fail, guarded = vocabulary.fail, vocabulary.guarded

local function parse(text, known)
  local clean, lines, words = scan.scan(text)
  local definitions = scan.split(clean, lines, words)
  if #definitions == 0 then fail(1, "the text defines no op: a definition begins name(tensors; scalars) =") end
  local ops, later, parsed, above = {}, {}, {}, nil
  for name, op in pairs(known) do ops[name] = op end
  for _, d in ipairs(definitions) do
    if d.name then later[d.name] = true end
  end
  for _, d in ipairs(definitions) do
    if above and not clean:find("^grad%f[^%w_]", d.pos) then define.check_used(above) end
    local b = define.build(d, clean, ops, later, above)
    if b.outer then
      above.op.grad = b.op
      define.check_used(above)
      define.check_used(b)
    else
      above, ops[b.op.name], parsed[#parsed + 1] = b, b.op, b.op
    end
  end
  define.check_used(above)
  return parsed
end

local notation = {}

function notation.parse(text, known) return guarded(parse, text, known or {}) end

function notation.axis_list(text) return guarded(axis_list, text) end

-- The line and column of a byte offset, from 1, and the line itself.
function notation.locate(text, pos)
  local before = text:sub(1, pos - 1)
  local _, newlines = before:gsub("\n", "")
  local start = (before:match "^.*\n()" or 1)
  return newlines + 1, pos - start + 1, (text:match("^[^\n]*", start):gsub("\r$", ""))
end

return notation
