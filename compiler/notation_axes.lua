-- notation_axes.lua: axis lists, the strings in which a description gives axes: "(kv group head_dim) hidden".
--
--   list = item { [","] item }     item = NAME [":" INTEGER] | "1" | "(" list ")"
--
-- Read token by token, with a stack of the open groups.
--
-- TRAPS. Commas may stand or not, but never two, and never first or last. An axis counts once in the whole list, groups
-- included.

local lpeg = require "lpeg"
local vocabulary = require "notation_words"
local scan = require "notation_scan"

local P, S, C, Cc, Cp = lpeg.P, lpeg.S, lpeg.C, lpeg.Cc, lpeg.Cp
local MAX_NAME, MAX_AXES = vocabulary.MAX_NAME, vocabulary.MAX_AXES
local MAX_OPEN, MAX_WHOLE = vocabulary.MAX_OPEN, vocabulary.MAX_WHOLE
local fail, check_axis_name = vocabulary.fail, vocabulary.check_axis_name
local digit, word, ws = scan.digit, scan.word, scan.ws
local check_habit, bad_character = scan.check_habit, scan.bad_character

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

return axis_list
