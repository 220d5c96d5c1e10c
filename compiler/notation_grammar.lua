-- notation_grammar.lua: one definition to a flat list of events: pos, kind, text, pos, kind, text, ...
--
-- The module is an LPeg pattern; match it as definition:match(text, 1, base), where base is the number of bytes before
-- the text, for the places of errors. No trees and no nested captures: what an event means is the machine's business.
-- Where one thing alone can follow, need() raises the error there.
--
-- TRAPS. LPeg allows 400 pending calls unless lpeg.setmaxstack says more, and it says so for the whole Lua state. An
-- optional part that fails backtracks silently: behind every word that decides, put need().

local lpeg = require "lpeg"
local vocabulary = require "notation_words"
local scan = require "notation_scan"

local P, S, V, C, Cc, Cp, Ct, Cmt, Carg =
  lpeg.P, lpeg.S, lpeg.V, lpeg.C, lpeg.Cc, lpeg.Cp, lpeg.Ct, lpeg.Cmt, lpeg.Carg
local word, number, ws, keyword, head = scan.word, scan.number, scan.ws, scan.keyword, scan.head
local fail = vocabulary.fail

lpeg.setmaxstack(4000)                   -- about 12 calls and choices are pending for each open bracket

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

return definition
