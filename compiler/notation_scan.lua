-- notation_scan.lua: characters, numbers, brackets and limits, before any grammar.
--
-- scan() goes through the text once, lexeme by lexeme, and blanks comments and joined newlines, so that a newline that
-- is left ends a logical line. split() cuts the text before every line that looks like a header. The patterns of words
-- and numbers serve the grammar and the axis lists too.
--
-- TRAPS. No offset may move: what is blanked becomes as many spaces. `head` recurses on parentheses, of which scan has
-- allowed 64 by then.

local lpeg = require "lpeg"
local vocabulary = require "notation_words"

local P, S, R, V, C, Cc, Cp = lpeg.P, lpeg.S, lpeg.R, lpeg.V, lpeg.C, lpeg.Cc, lpeg.Cp
local MAX_TEXT, MAX_WORDS, MAX_OPEN = vocabulary.MAX_TEXT, vocabulary.MAX_WORDS, vocabulary.MAX_OPEN
local MAX_NAME, MAX_WHOLE = vocabulary.MAX_NAME, vocabulary.MAX_WHOLE
local CONTINUES, NOT_FIRST = vocabulary.CONTINUES, vocabulary.NOT_FIRST
local HABITS, LOOKALIKE = vocabulary.HABITS, vocabulary.LOOKALIKE
local fail = vocabulary.fail

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

return {
  digit = digit, word = word, number = number, ws = ws, keyword = keyword, head = head,
  scan = scan, split = split, check_habit = check_habit, bad_character = bad_character,
}
