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
--     scan      characters, numbers, brackets, limits; blanks comments and joined lines without moving an offset
--     grammar   LPeg, one definition at a time, to a flat list of events (pos, kind, text): no trees, no nested
--               captures. Only brackets nest, and scan allows 64. Where one thing alone can follow, need() raises
--               the error there.
--     machine   the table `on` has a function for each kind of event; a stack of operators makes nodes in order
--
-- TRAPS. LPeg allows 400 pending calls unless lpeg.setmaxstack says more, and it says so for the whole Lua state. An
-- optional part that fails backtracks silently: behind every word that decides, put need(). The nodes of an index are
-- taken back when it is a sum of positions (make_entry), so nothing may remember a node made inside braces. Errors
-- leave by fail(): anything that is not such a table is a fault of this file and is thrown on.

local lpeg = require "lpeg"
local P, S, R, V, C, Cc, Cp, Ct, Cmt, Carg =
  lpeg.P, lpeg.S, lpeg.R, lpeg.V, lpeg.C, lpeg.Cc, lpeg.Cp, lpeg.Ct, lpeg.Cmt, lpeg.Carg

lpeg.setmaxstack(4000)                   -- about 12 calls and choices are pending for each open bracket

local MAX_TEXT, MAX_WORDS, MAX_NODES, MAX_OPEN, MAX_NAME, MAX_AXES = 256 * 1024, 4096, 4096, 64, 64, 16
local MAX_WHOLE = 2^31 - 1

------------------------------------------------------------------------------------------------------------------------
-- Words

local function set(words)
  local s = {}
  for w in words:gmatch "%S+" do s[w] = true end
  return s
end

-- Function -> number of arguments.
local ARITY = { max = 2, min = 2, where = 3 }
for w in ("exp log sqrt rsqrt tanh sigmoid erf sin cos abs sign floor int f32 bf16 stop_gradient const"):gmatch "%S+" do
  ARITY[w] = 1
end
local REDUCES = set "sum mean max min"
local SPECIAL = set "and or not grad inf pi index extent random sum mean"
local KEEPS_TYPE = set "abs sign floor stop_gradient const max min where"

local function reserved(name) return SPECIAL[name] or ARITY[name] ~= nil end

-- Function or reduction -> how it is written.
local function usage(name)
  if name == "where" then return "where(condition, a, b)" end
  if name == "random" then return "random[axis]()" end
  if name == "sum" or name == "mean" then return name .. "[axis](x)" end
  if ARITY[name] == 2 then return ("%s(a, b) or %s[axis](x)"):format(name, name) end
  return name .. "(x)"
end

local BINARY = {
  ["or"] = { 1, "or" }, ["and"] = { 2, "and" },
  ["<"] = { 3, "lt" }, ["<="] = { 3, "le" }, ["=="] = { 3, "eq" }, ["~="] = { 3, "ne" },
  [">"] = { 3, "lt", swap = true }, [">="] = { 3, "le", swap = true },
  ["+"] = { 4, "add" }, ["-"] = { 4, "sub" }, ["*"] = { 5, "mul" }, ["/"] = { 5, "div" },
  ["^"] = { 7, "pow", right = true },
}
local COMPARE, PREFIX = 3, 6             -- binding powers; `-x^2` is -(x^2), `-x*y` is (-x)*y

-- After these a newline counts nothing; with one of these a line cannot begin ('-' and 'not' begin an expression).
local CONTINUES = set "= , ; + - * / ^ < <= > >= == ~= and or not"
local NOT_FIRST = set "= , ; : + * / ^ < <= > >= == ~= and or"

-- Habits from elsewhere: spelling -> what to write. None is part of a legal text. Tried in this order.
local HABITS = {
  { "**", "write ^ for a power" }, { "!=", "write ~= for 'not equal'" }, { "<>", "write ~= for 'not equal'" },
  { "//", "write floor(a / b)" }, { "&&", "write and" }, { "||", "write or" },
  { "=<", "write <=" }, { "=>", "write >=" }, { ":=", "write =" }, { "->", "a result is the last line of the body" },
  { "+=", "write x' = x + y" }, { "-=", "write x' = x - y" }, { "*=", "write x' = x * y" },
  { "/=", "write ~= for 'not equal'" }, { "!", "write not" }, { "~", "write not, or ~= for 'not equal'" },
  { "&", "write and" }, { "|", "write or" },
  { "%", "write a - b*floor(a / b)" }, { "?", "write where(condition, a, b)" }, { "#", "a comment begins with --" },
  { "@", "write sum[axis](a * b)" }, { '"', "there are no strings" },
  { ".", "a decimal point has digits on both sides, and '..' stands for the open axes" },
}

-- Not ASCII, with the ASCII spelling where there is one.
local LOOKALIKE = {
  ["−"] = "-", ["–"] = "-", ["—"] = "-", ["×"] = "*", ["·"] = "*", ["÷"] = "/", ["≤"] = "<=", ["≥"] = ">=",
  ["≠"] = "~=",
  ["²"] = "^2", ["³"] = "^3", ["∞"] = "inf", ["π"] = "pi", ["…"] = "..", ["’"] = "'", ["′"] = "'",
  ["∧"] = "and", ["∨"] = "or", ["¬"] = "not", ["√"] = "sqrt", ["Σ"] = "sum", ["∑"] = "sum", ["σ"] = "sigmoid",
  ["\u{a0}"] = " ", ["，"] = ",", ["（"] = "(", ["）"] = ")",
}

------------------------------------------------------------------------------------------------------------------------
-- Errors

local function fail(pos, message, ...)
  error({ pos = pos, message = select("#", ...) > 0 and message:format(...) or message }, 0)
end

-- Runs f; returns its result, or nil and the error it failed with.
local function guarded(f, ...)
  local ok, result = pcall(f, ...)
  if ok then return result end
  if type(result) ~= "table" then error(result, 0) end
  return nil, result
end

-- Edits (insert, delete, replace, swap of neighbours) between two names.
local function distance(a, b)
  local before, row = {}, {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local now = { [0] = i }
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      local d = math.min(row[j] + 1, now[j - 1] + 1, row[j - 1] + (same and 0 or 1))
      local swapped = i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j)
      if swapped then d = math.min(d, before[j - 2] + 1) end
      now[j] = d
    end
    before, row = row, now
  end
  return row[#b]
end

-- "; did you mean 'hidden'?" for the nearest of the keys of the given tables, or "".
local function suggest(name, ...)
  local names = {}
  for _, t in ipairs { ... } do
    for k in pairs(t) do names[#names + 1] = k end
  end
  table.sort(names)
  local best, least = nil, math.max(1, #name // 3) + 1
  for _, n in ipairs(names) do
    local d = math.abs(#n - #name) < least and distance(name, n) or least
    if d < least then best, least = n, d end
  end
  return best and ("; did you mean '%s'?"):format(best) or ""
end

local function plural(n, noun) return ("%d %s%s"):format(n, noun, n == 1 and "" or "s") end

local function check_axis_name(name, pos)
  if reserved(name) then fail(pos, "'%s' is a word of the notation, not an axis", name) end
end

------------------------------------------------------------------------------------------------------------------------
-- Scan: characters, numbers, brackets, limits

local digit, letter = R "09", R("az", "AZ") + "_"
local alnum = letter + digit
local word = letter * alnum^0
local number = digit^1 * ("." * digit^1)^-1 * (S "eE" * S "+-"^-1 * digit^1)^-1
local ws = S " \t\r"^0

local function keyword(s) return P(s) * -alnum end

local lexeme = Cp() * (S " \t\r"^1 * Cc "space" + "--" * (1 - P "\n")^0 * Cc "comment" + P "\n" * Cc "newline"
  + word * Cc "word" + number * Cc "number"
  + (P ".." + "<=" + ">=" + "==" + "~=" + S "()[]{}<>=+-*/^,;:'") * Cc "symbol") * Cp()

-- The start of a definition: captures its name.
local head = (keyword "grad" * ws * #letter)^-1 * C(word) * ws * ("[" * (1 - S "[]\n")^0 * "]" * ws)^-1
  * P { "(" * ((1 - S "()\n") + V(1))^0 * ")" } * ws * "=" * -P "="

local function bad_character(text, pos)
  local byte = text:byte(pos)
  local char = text:match("^[\xC2-\xF4][\x80-\xBF]+", pos)
  if char and utf8.len(char) == 1 then
    if LOOKALIKE[char] then fail(pos, "'%s' is not ASCII: write '%s'", char, LOOKALIKE[char]) end
    fail(pos, "'%s' is not ASCII: names and comments use a to z", char)
  elseif byte < 32 or byte > 126 then
    fail(pos, "a text is ASCII, and this is byte 0x%02x", byte)
  end
  fail(pos, "unexpected '%s'", string.char(byte))
end

local habit = P(false)
for _, h in ipairs(HABITS) do habit = habit + C(h[1]) * Cc(h[2]) end
habit = habit - (P ".." + "~=")

local function check_habit(text, pos)
  local fraction = text:match("^%.%d+", pos)
  if fraction then fail(pos, "a number begins with a digit: write 0%s", fraction) end
  local spelling, hint = habit:match(text, pos)
  if spelling then fail(pos, "unexpected '%s': %s", spelling, hint) end
end

-- text:sub(pos, stop - 1) reads as a number: does it end as one?
local function check_number(text, pos, stop)
  local digits = text:sub(pos, stop - 1)
  if text:find("^%.%f[^%.]", stop) then fail(pos, "a decimal point has digits on both sides: write %s.0", digits) end
  local tail = text:match("^[%a_][%w_]*", stop)
  if tail and tail:find "^[eE]" then
    fail(pos, "'%s%s' is not a number: an exponent has digits, as in 1e-6", digits, tail)
  end
  if tail then fail(pos, "'%s%s' is not a number: to multiply, write %s*%s", digits, tail, digits, tail) end
  local value = tonumber(digits)
  if value == math.huge then fail(pos, "this number is too large for a double: write inf") end
  if value > MAX_WHOLE and not digits:find "[.eE]" then
    fail(pos, "whole numbers have 32 bits: write %s.0 for a float", digits)
  end
end

local CLOSES = { [")"] = "(", ["]"] = "[", ["}"] = "{" }

local function track_bracket(open, symbol, pos)
  if symbol == "(" or symbol == "[" or symbol == "{" then
    if #open == MAX_OPEN then fail(pos, "more than %d open brackets: name a part on a line of its own", MAX_OPEN) end
    open[#open + 1] = { symbol = symbol, pos = pos }
  elseif CLOSES[symbol] then
    local top = table.remove(open)
    if not top then fail(pos, "this '%s' closes nothing", symbol) end
    if top.symbol ~= CLOSES[symbol] then
      fail(pos, "this '%s' cannot close the '%s' before it", symbol, top.symbol)
    end
  end
end

-- Returns the text with comments and joined newlines blank, and its logical lines { pos, words = words before it }.
local function scan(text)
  if #text > MAX_TEXT then fail(MAX_TEXT + 1, "a text has at most %d KiB", MAX_TEXT // 1024) end
  local clean, lines, open = {}, {}, {}
  local pos, words, last, fresh = 1, 0, nil, true
  while pos <= #text do
    check_habit(text, pos)
    local _, kind, stop = lexeme:match(text, pos)
    if not kind then bad_character(text, pos) end
    local piece = text:sub(pos, stop - 1)
    if kind == "comment" then
      local odd = piece:find "[^\t\r\x20-\x7e]"
      if odd then bad_character(text, pos + odd - 1) end
      piece = (" "):rep(#piece)
    elseif kind == "newline" then
      if #open > 0 or CONTINUES[last] then piece = " " else fresh = true end
    elseif kind ~= "space" then
      if fresh and NOT_FIRST[piece] then
        fail(pos, "a line cannot begin with '%s': end the line above with it", piece)
      end
      if fresh then lines[#lines + 1] = { pos = pos, words = words } end
      if kind == "word" and #piece > MAX_NAME then fail(pos, "a name has at most %d letters", MAX_NAME) end
      if kind == "number" then check_number(text, pos, stop) end
      if kind == "symbol" then track_bracket(open, piece, pos) end
      words, last, fresh = words + 1, piece, false
    end
    clean[#clean + 1] = piece
    pos = stop
  end
  local top = open[#open]
  if top then fail(top.pos, "this '%s' is never closed", top.symbol) end
  return table.concat(clean), lines, words
end

-- Returns the definitions { pos, stop, name }, name nil where the first line is no header.
local function split(clean, lines, words)
  local found = {}
  for i, line in ipairs(lines) do
    local name = head:match(clean, line.pos)
    if i == 1 or name then found[#found + 1] = { pos = line.pos, name = name, words = line.words } end
  end
  for i, d in ipairs(found) do
    local after = found[i + 1]
    d.stop = after and after.pos - 1 or #clean
    if (after and after.words or words) - d.words > MAX_WORDS then
      fail(d.pos, "an op has at most %d words: break it into several", MAX_WORDS)
    end
  end
  return found
end

------------------------------------------------------------------------------------------------------------------------
-- Grammar: one definition to a flat list pos, kind, text, pos, kind, text, ...

local function event(kind, p) return Cp() * Cc(kind) * C(p) * ws end
local function mark(kind) return event(kind, "") end
local function sym(s) return P(s) * ws end

-- What stands at pos, in words; and pos, moved back to the end of the line if nothing stands there.
local function found(s, pos)
  local token = s:match("^[%w_]+", pos) or s:match("^[.<>=~]+", pos) or s:match("^[^\n]", pos)
  if token then return "'" .. token .. "'", pos end
  return "the end of the line", s:sub(1, pos - 1):match "^.*[^ \t\r\n]()" or 1
end

-- p, or the error "expected WHAT, found ...: HINT". hint: a string, or a function (s, pos) to one or nil.
local function need(p, what, hint)
  local function raise(s, pos, base)
    local token, place = found(s, pos)
    local more = type(hint) == "function" and hint(s, pos) or type(hint) == "string" and hint
    fail(base + place, "expected %s, found %s%s", what, token, more and ": " .. more or "")
  end
  return p + Cmt(Carg(1), raise)
end

local function list(item) return item * (sym "," * item)^0 end
local function closing(bracket, what, hint) return need(sym(bracket), what, hint) end

local function after_statement(s, pos)
  local next_char = s:sub(pos, pos)
  if head:match(s, pos) then return "each op begins on a line of its own" end
  if next_char == "=" then return "write == to compare; a name is given once, at the beginning of a line" end
  if next_char:find "[%w_(]" then return "to multiply, write *" end
  if next_char == "[" then return "a value is written without its axes" end
end

local function no_value(s, pos)
  local next_char = s:sub(pos, pos)
  if next_char == "[" then return "brackets list axes, as in sum[axis](x)" end
  if next_char == "{" then return "braces follow a value, as in x{two = 0}" end
end

local BRACKETS = "brackets list axes, as in sum[axis](x); an index is put in the place of an axis by braces, "
  .. "as in x{two = 0}"
local BRACES = "braces put an index in the place of an axis, as in x{two = 0}"
local SPLIT = "an axis is split as in head_dim = (two: 2, half)"
local VALUE_AXES = "brackets list the axes of a call, as in sum[axis](x); a value is written without its axes"
local ONE_AXIS = "index and extent take one axis name, as in index(seq) + 1"
local BY_NAME = "after ';' scalars are given by name, as in rmsnorm(x, gain; eps = 1e-6)"

local plain_word = word - (keyword "and" + keyword "or" + keyword "not")
local assign = P "=" * -P "=" * ws
local call_axis = need(event("call_axis", P ".." + word), "an axis", BRACKETS)
local given = event("given", word) * (assign * V "expr" * mark "given_value" + mark "given_short")

local definition = P { "definition",
  definition = Ct(event("grad", keyword "grad")^-1 * V "header" * V "body"),

  header = event("define", need(word, "the name of an op"))
    * (sym "[" * list(event("op_axis", need(word, "the name of an axis"))) * closing("]", "']' or ','"))^-1
    * need(sym "(", "'('", "a definition begins name(tensors; scalars) =")
    * (#S ";)" + list(need(V "param", "the name of a tensor")))
    * (sym ";" * list(need(V "scalar", "the name of a scalar")))^-1
    * closing(")", "')', ',' or ';'") * mark "header_end"
    * need(assign, "'='", "a definition begins name(tensors; scalars) ="),
  param = event("param", word)
    * (event("param_axes", "[") * (#P "]" + list(need(V "axis", "an axis"))) * closing("]", "']' or ','"))^-1,
  axis = event("axis", P ".." + word) * (sym "=" * V "split")^-1,
  split = need(event("split", "("), "'('", SPLIT)
    * V "part" * need(sym ",", "','", "a split has two parts or more") * list(V "part") * closing(")", "')' or ','"),
  part = need(event("part", word), "the name of a part", SPLIT)
    * (sym ":" * event("size", need(number, "a size")))^-1,
  scalar = event("scalar", word) * (assign * mark "default" * V "expr" * mark "default_end")^-1,

  body = V "statement" * ((P "\n" * ws)^1 * (-P(1) + V "statement"))^0
    * need(-P(1), "an operator or the end of the line", after_statement),
  statement = mark "statement" * (V "line" + list(V "expr" * mark "result")),
  line = (event("update", word * #(ws * "'")) * sym "'" + event("line", word)) * assign * V "expr" * mark "line_end",

  expr = event("prefix", P "-" + keyword "not")^0 * need(V "operand", "a value", no_value)
    * (event("binary", P "<=" + ">=" + "==" + "~=" + S "<>+-*/^" + keyword "and" + keyword "or")
       * event("prefix", P "-" + keyword "not")^0 * need(V "operand", "a value", no_value))^0,
  operand = V "primary" * V "braces"^0,
  primary = event("number", number + keyword "inf" + keyword "pi")
    + event("open", "(") * V "expr" * closing(")", "')' or an operator") * mark "close"
    + event("place", keyword "index" + keyword "extent") * need(sym "(", "'('", ONE_AXIS)
      * event("place_axis", need(word, "an axis", ONE_AXIS)) * closing(")", "')'", ONE_AXIS)
    + V "call" + event("primed", plain_word) * sym "'" + event("value", plain_word),
  call = event("call", plain_word * #(ws * S "[("))
    * (sym "[" * list(call_axis) * closing("]", "']' or ','"))^-1
    * need(sym "(", "'('", VALUE_AXES)
    * (#S ";)" + list(V "expr" * mark "arg"))
    * (sym ";" * list(need(given, "the name of a scalar", BY_NAME)))^-1
    * closing(")", "')', ',' or an operator") * mark "call_end",
  braces = event("brace", "{")
    * list(need(event("key", word), "the name of an axis", BRACES) * need(assign, "'='", BRACES)
           * V "expr" * mark "entry")
    * closing("}", "'}', ',' or an operator") * mark "brace_end",
}

------------------------------------------------------------------------------------------------------------------------
-- The machine. A builder b holds what is known of the op being read:
--   op, clean (the text), ops (name -> op, callable), later (names of ops further down)
--   values   name -> { node, pos, kind = "tensor" | "scalar" | "line" | "update", used }     named: those in order
--   axes     header axes: name -> true          rest: a tensor has '..'      loose: bracket axes not mentioned yet
--   mentions { name, pos } of axes, checked at the end, since a renaming may come after them
--   renames  { from, to, pos }                  made: their new names, name -> true
--   outer    in a grad, the builder of its op
--   stack    operators and frames               vals: operands { node, start }
--   dep      node -> how it may vary: FIXED, UNKNOWN (an op's result), PLACE (index), TENSOR, RANDOM

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

-- Calls -------------------------------------------------------------------------------------------------------------

function on.call(b, pos, name)
  b.stack[#b.stack + 1] = { frame = "call", name = name, pos = pos, axes = {}, axis_pos = {}, args = {}, given = {} }
end

local function frame_of(b) return b.stack[#b.stack] end

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

-- Braces ------------------------------------------------------------------------------------------------------------

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

local function parse(text, known)
  local clean, lines, words = scan(text)
  local definitions = split(clean, lines, words)
  if #definitions == 0 then fail(1, "the text defines no op: a definition begins name(tensors; scalars) =") end
  local ops, later, parsed, above = {}, {}, {}, nil
  for name, op in pairs(known) do ops[name] = op end
  for _, d in ipairs(definitions) do
    if d.name then later[d.name] = true end
  end
  for _, d in ipairs(definitions) do
    if above and not clean:find("^grad%f[^%w_]", d.pos) then check_used(above) end
    local b = build(d, clean, ops, later, above)
    if b.outer then
      above.op.grad = b.op
      check_used(above)
      check_used(b)
    else
      above, ops[b.op.name], parsed[#parsed + 1] = b, b.op, b.op
    end
  end
  check_used(above)
  return parsed
end

------------------------------------------------------------------------------------------------------------------------
-- Axis lists of Lua strings: list = item { [","] item }, item = NAME [":" INTEGER] | "1" | "(" list ")"

local list_token = ws * (Cp() * (C(word) * Cc "name" + C(digit^1) * Cc "number" + C(S "():,") * Cc "symbol") * Cp()
  + Cp() * -P(1) * Cc "" * Cc "end" * Cp())

-- Reads the token at pos: { text, kind, pos, stop }.
local function next_token(text, pos)
  local from, piece, kind, stop = list_token:match(text, pos)
  if not from then
    from = text:find("[^ \t\r]", pos)
    check_habit(text, from)
    bad_character(text, from)
  end
  return { text = piece, kind = kind, pos = from, stop = stop }
end

local function named_item(text, token, seen)
  local name = token.text
  if #name > MAX_NAME then fail(token.pos, "a name has at most %d letters", MAX_NAME) end
  check_axis_name(name, token.pos)
  if seen[name] then fail(token.pos, "'%s' is listed twice: a tensor has each axis once", name) end
  if #seen == MAX_AXES then fail(token.pos, "a value has at most %d axes", MAX_AXES) end
  seen[name], seen[#seen + 1] = true, true
  local item, stop = { name = name, pos = token.pos }, token.stop
  local colon = next_token(text, stop)
  if colon.text == ":" then
    local size = next_token(text, colon.stop)
    item.extent = size.kind == "number" and math.tointeger(tonumber(size.text))
    if not item.extent or item.extent < 1 or item.extent > MAX_WHOLE then
      fail(size.pos, "after ':' comes the size of the axis, a whole number from 1, as in %s:2", name)
    end
    stop = size.stop
  end
  return item, stop
end

local function axis_list(text)
  local items, groups, seen, pos, comma = {}, {}, {}, 1, nil
  while true do
    local token = next_token(text, pos)
    local item = nil
    pos = token.stop
    if token.kind == "name" then
      item, pos = named_item(text, token, seen)
    elseif token.text == "1" then
      item = { one = true, pos = token.pos }
    elseif token.text == "(" then
      if #groups == MAX_OPEN then fail(token.pos, "more than %d open brackets", MAX_OPEN) end
      item = { group = {}, pos = token.pos }
    elseif token.text == "," then
      if comma or #items == 0 then fail(token.pos, "expected an axis before ','") end
    elseif token.text == ")" or token.kind == "end" then
      local group = groups[#groups]
      if token.text == ")" and not group then fail(token.pos, "this ')' closes nothing") end
      if token.kind == "end" and group then fail(group.pos, "this '(' is never closed") end
      if #items == 0 or comma then
        fail(token.pos, "expected an axis, found %s", token.kind == "end" and "the end of the list" or "')'")
      end
      if not group then return items end
      groups[#groups], items = nil, group.around
      group.around = nil
    else
      fail(token.pos, "expected an axis, found '%s': an item is a name, 1, or a group in parentheses", token.text)
    end
    comma = token.text == ","
    if item then
      items[#items + 1] = item
      if item.group then
        groups[#groups + 1], item.around, items = item, items, item.group
      end
    end
  end
end

------------------------------------------------------------------------------------------------------------------------

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
