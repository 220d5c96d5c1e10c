-- notation_words.lua: the vocabulary of the notation, its limits, and errors that speak of words.
--
-- Tables of functions, reductions, operators and reserved words; spellings from elsewhere with what to write for them;
-- fail, and guesses at what a wrong name was meant to be.
--
-- TRAPS. Errors leave by fail(), as a table { pos, message }: anything else that is thrown is a fault of the parser,
-- and guarded() throws it on. Suggestions sort the names first, since tables have no order.

local MAX_TEXT, MAX_WORDS, MAX_NODES, MAX_OPEN, MAX_NAME, MAX_AXES = 256 * 1024, 4096, 4096, 64, 64, 16
local MAX_WHOLE = 2^31 - 1

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

return {
  MAX_TEXT = MAX_TEXT, MAX_WORDS = MAX_WORDS, MAX_NODES = MAX_NODES, MAX_OPEN = MAX_OPEN, MAX_NAME = MAX_NAME,
  MAX_AXES = MAX_AXES, MAX_WHOLE = MAX_WHOLE,
  ARITY = ARITY, REDUCES = REDUCES, KEEPS_TYPE = KEEPS_TYPE, BINARY = BINARY, COMPARE = COMPARE, PREFIX = PREFIX,
  CONTINUES = CONTINUES, NOT_FIRST = NOT_FIRST, HABITS = HABITS, LOOKALIKE = LOOKALIKE,
  reserved = reserved, usage = usage, plural = plural, suggest = suggest,
  fail = fail, guarded = guarded, check_axis_name = check_axis_name,
}
