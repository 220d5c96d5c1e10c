-- Tests of compiler/notation.lua:  lua5.4 tests/notation/run.lua [--bless]
--
-- accepted.txt must be read (and print as the .golden files say), refused.txt refused at a place with a message, limits
-- hold on both sides, mutations of accepted texts never throw. A line for each failure, then "N passed, N failed".
-- Whatever is read is verified against the op table described at the head of notation.lua.

local here = arg[0]:match "^(.*)/[^/]*$" or "."
package.path = here .. "/../../compiler/?.lua;" .. package.path
local notation = require "notation"

local bless = arg[1] == "--bless"
local passed, failed = 0, 0

local function check(ok, ...)
  if ok then passed = passed + 1; return true end
  failed = failed + 1
  print(("FAIL %s"):format(table.concat({ ... }, ": ")))
  return false
end

local function read(name)
  local f = io.open(here .. "/" .. name, "rb")
  local text = f and f:read "a"
  if f then f:close() end
  return text
end

-- "# name", then the text: a list of { name, text }.
local function cases(file)
  local list, lines, name = {}, {}, nil
  local function close()
    if name then list[#list + 1] = { name = name, text = table.concat(lines, "\n"):gsub("\n+$", "") } end
  end
  for line in (read(file) .. "\n"):gmatch "([^\n]*)\n" do
    local title = line:match "^# (.*)"
    if title then close(); name, lines = title, {} else lines[#lines + 1] = line end
  end
  close()
  return list
end

-- Printing ----------------------------------------------------------------------------------------------------------

local function axes_text(axes)
  local names = {}
  for i, a in ipairs(axes) do
    local parts = {}
    for k, p in ipairs(a.parts or {}) do parts[k] = p.name .. (p.extent and ":" .. p.extent or "") end
    names[i] = a.name .. (a.parts and "=(" .. table.concat(parts, " ") .. ")" or "")
  end
  return "[" .. table.concat(names, " ") .. "]"
end

local function entry_text(e)
  if e.index then return ("%s: index %d"):format(e[1], e.index) end
  local terms = {}
  for i, t in ipairs(e.terms) do terms[i] = (t[2] > 0 and "+" or "-") .. t[1] end
  return ("%s: %s%s"):format(e[1], table.concat(terms, " "), e.const and " const " .. e.const or "")
end

local function operand_text(kind, value)
  if kind == "num" then return ("%.17g"):format(value) end
  if type(value) ~= "table" then return tostring(value) end
  if kind ~= "at" then return "{" .. table.concat(value, " ") .. "}" end
  local entries = {}
  for i, e in ipairs(value) do entries[i] = entry_text(e) end
  return "{ " .. table.concat(entries, "; ") .. " }"
end

local function node_text(node)
  local words = {}
  for i = 1, #node do words[i] = i == 1 and node[1] or operand_text(node[1], node[i]) end
  if node[1] == "op" then
    words[#words + 1] = "[" .. table.concat(node.axes, " ") .. "] (" .. table.concat(node.args, " ") .. ")"
    for _, g in ipairs(node.given) do words[#words + 1] = g[1] .. "=" .. g[2] end
  end
  if node.whole then words[#words + 1] = "whole" end
  return table.concat(words, " ")
end

local function print_op(op, title)
  local out = { ("%s %s [%s] at %d, size %d"):format(title, op.name, table.concat(op.axes, " "), op.pos, op.size) }
  local function add(...) out[#out + 1] = (...):format(select(2, ...)) end
  for i, p in ipairs(op.params) do
    add("  tensor %d %s %s at %d", i, p.name, p.axes and axes_text(p.axes) or "any", p.pos)
  end
  for i, s in ipairs(op.scalars) do add("  scalar %d %s = %s at %d", i, s.name, s.default or "none", s.pos) end
  for i, n in ipairs(op.nodes) do
    add("%4d  %-44s %-9s %4d  %s", i, node_text(n), n.type, n.pos, n.name or "")
    out[#out] = out[#out]:gsub("%s+$", "")
  end
  for _, u in ipairs(op.updates) do add("  update %s' = %d", op.params[u[1]].name, u[2]) end
  if #op.results > 0 then add("  results %s", table.concat(op.results, " ")) end
  for i, l in ipairs(op.locals) do add("  local %s from %s", l, op.local_from[i]) end
  return table.concat(out, "\n") .. "\n" .. (op.grad and print_op(op.grad, "grad") or "")
end

local function print_ops(ops)
  local out = {}
  for i, op in ipairs(ops) do out[i] = print_op(op, "op") end
  return table.concat(out, "\n")
end

-- Verifying: what the head of notation.lua promises -------------------------------------------------------------------

-- Kind -> positions of its operands in the array.
local OPERANDS = {
  num = {}, param = {}, scalar = {}, index = {}, extent = {}, random = {}, outer = {}, op = {},
  neg = { 2 }, ["not"] = { 2 }, at = { 2 }, reduce = { 4 },
}
for kind in ("add sub mul div pow lt le eq ne and or"):gmatch "%S+" do OPERANDS[kind] = { 2, 3 } end
local TYPES = { float = true, whole = true, condition = true, number = true }

local function operands(node)
  local list = {}
  for _, i in ipairs(OPERANDS[node[1]] or {}) do list[#list + 1] = node[i] end
  if node[1] == "fn" then table.move(node, 3, #node, 1, list) end
  if node[1] == "op" then
    table.move(node.args, 1, #node.args, 1, list)
    for _, g in ipairs(node.given) do list[#list + 1] = g[2] end
  elseif node[1] == "at" then
    for _, e in ipairs(node[3]) do
      assert(not e.index ~= not e.terms, "an entry has either terms or an index")
      list[#list + 1] = e.index or e.const
    end
  end
  return list
end

local function verify(op, text, outer)
  local used = {}
  for i, node in ipairs(op.nodes) do
    assert(OPERANDS[node[1]] or node[1] == "fn", "kind of node")
    assert(TYPES[node.type], "type of node")
    assert(math.type(node.pos) == "integer" and node.pos >= 1 and node.pos <= #text, "place of node")
    assert((node[1] == "param") == (i <= #op.params) and (node[1] ~= "param" or node[2] == i), "params come first")
    assert(node[1] ~= "outer" or outer.nodes[node[2]], "outer")
    for _, o in ipairs(operands(node)) do
      assert(math.type(o) == "integer" and o >= 1 and o < i, "a node refers to earlier ones")
      used[o] = true
    end
  end
  local function node(i) assert(op.nodes[i]); used[i] = true end
  for _, r in ipairs(op.results) do node(r) end
  for _, u in ipairs(op.updates) do node(u[2]); assert(op.params[u[1]]) end
  for _, s in ipairs(op.scalars) do if s.default then node(s.default) end end
  for i, n in ipairs(op.nodes) do assert(used[i] or outer or op.grad or n[1] == "param", "a node that nothing uses") end
  assert(#op.locals == #op.local_from and op.size >= #op.nodes)
  if op.grad then verify(op.grad, text, op) end
end

-- parse, and verify what comes out. Throws where notation.lua breaks its promises.
local function parse(text, known)
  local ops, err = notation.parse(text, known)
  if ops then
    for _, op in ipairs(ops) do verify(op, text) end
  else
    assert(math.type(err.pos) == "integer" and err.pos >= 1 and err.pos <= #text + 1, "place of the error")
    assert(type(err.message) == "string" and #err.message > 0 and not err.message:find "[\n.]$", "message of the error")
    local line, column, source = notation.locate(text, err.pos)
    assert(line >= 1 and column >= 1 and column <= #source + 2, "line and column")
  end
  return ops, err
end

local function place(text, err)
  local line, column = notation.locate(text, err.pos)
  return ("%d:%d %s"):format(line, column, err.message)
end

-- The tests -----------------------------------------------------------------------------------------------------------

local library = {}

local function golden(name, ops)
  local file = name:gsub(",.*", ""):gsub(" ", "_") .. ".golden"
  local want, got = read(file), print_ops(ops)
  if not want then return end
  if bless and want ~= got then
    local f = assert(io.open(here .. "/" .. file, "wb"))
    f:write(got)
    f:close()
    want = got
  end
  if want == got then return check(true) end
  local n = 0
  local lines = want:gmatch "([^\n]*)\n"
  for line in got:gmatch "([^\n]*)\n" do
    n = n + 1
    local w = lines()
    if line ~= w then return check(false, file, n, "expected " .. tostring(w), "got " .. line) end
  end
  check(false, file, "ends early")
end

local function test_accepted(accepted)
  for i, case in ipairs(accepted) do
    local known = case.name:find "alone" and {} or library
    local ok, ops, err = pcall(parse, case.text, known)
    if check(ok, case.name, ops) and check(ops, case.name, err and place(case.text, err)) then
      if i == 1 then
        for _, op in ipairs(ops) do library[op.name] = op end
      end
      golden(case.name, ops)
    end
  end
end

local function test_refused()
  for _, case in ipairs(cases "refused.txt") do
    local line, column, message, text = case.text:match "^@ (%d+):(%d+) ([^\n]*)\n(.*)$"
    local ok, ops, err = pcall(parse, text, library)
    if check(ok, case.name, ops) and check(not ops, case.name, "was accepted") then
      local got = place(text, err)
      local at = ("%s:%s "):format(line, column)
      local fits = got:sub(1, #at) == at and got:find(message, 1, true)
      check(fits, case.name, "expected " .. at .. message, "got " .. got)
    end
  end
end

local function repeated(s, n, between) return s:rep(n, between or "") end

-- 4 * 2^levels - 2 nodes, written out.
local function doubling(levels)
  local lines = { "d0(x) = x + x" }
  for i = 1, levels do lines[i + 1] = ("d%d(x) = d%d(x) + d%d(x)"):format(i, i - 1, i - 1) end
  return table.concat(lines, "\n")
end

local function many_ops(count)
  local lines = {}
  for i = 1, count do lines[i] = ("op%d(x) = x + %d"):format(i, i) end
  return table.concat(lines, "\n")
end

local function test_limits()
  local function nest(open, middle, close, n)
    return "f(x[a]) = " .. repeated(open, n) .. middle .. repeated(close, n)
  end
  local fine = {
    ["500 terms"] = "f(x) = " .. repeated("x", 500, " + "),
    ["2000 terms on lines"] = "f(x) = " .. repeated("x", 2000, " +\n"),
    ["64 parentheses"] = nest("(", "x", ")", 64),
    ["64 calls"] = nest("exp(", "x", ")", 64),
    ["64 reductions"] = nest("max[a](", "x", ")", 64),
    ["64 braces"] = nest("x{a = ", "0", "}", 64),
    ["32 calls in braces"] = nest("max(x{a = int(", "0", ")}, 1)", 21),
    ["4000 minus signs"] = "f(x) = " .. repeated("- ", 4000) .. "x",
    ["1300 powers"] = "f(x) = x" .. repeated("^-x", 1300),
    ["300 braces in a row"] = "f(x[a]) = x" .. repeated("{a = b, b = a}", 300),
    ["64 letters"] = "f(" .. repeated("x", 64) .. ") = " .. repeated("x", 64),
    ["4096 nodes written out"] = doubling(10),
    ["2000 ops"] = many_ops(2000),
  }
  local names = {}
  for name in pairs(fine) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local ok, ops, err = pcall(parse, fine[name], {})
    check(ok and ops, name, ok and err and place(fine[name], err) or tostring(ops))
  end
  local refused = {
    { nest("(", "x", ")", 65), 75, "more than 64 open brackets" },
    { nest("(", "x", ")", 300), 75, "more than 64 open brackets" },
    { nest("exp(", "x", ")", 300), 10 + 65 * 4, "more than 64 open brackets" },
    { "g(x) = x\nf(x) = " .. repeated("x", 3000, " + "), 10, "4096 words" },
    { doubling(12), nil, "4096 nodes" },
    { "-- " .. repeated(" ", 256 * 1024) .. "\nf(x) = x", 256 * 1024 + 1, "256 KiB" },
    { "f(x) = " .. repeated("y", 65), 8, "64 letters" },
    { "f(x[..]) = sum[a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q](x)", 16 + 32, "16 axes" },
  }
  for i, case in ipairs(refused) do
    local ok, ops, err = pcall(parse, case[1], {})
    local fits = ok and not ops and (not case[2] or err.pos == case[2]) and err.message:find(case[3], 1, true)
    check(fits, "limit " .. i, case[3], tostring(ok and err and err.pos .. " " .. err.message or ops))
  end
end

-- Axis lists to one line: kv:2, 1, (a b).
local function items_text(items)
  local out = {}
  for i, item in ipairs(items) do
    out[i] = item.one and "1" or item.group and "(" .. items_text(item.group) .. ")"
      or item.name .. (item.extent and ":" .. item.extent or "")
  end
  return table.concat(out, " ")
end

local function test_axis_lists()
  local fine = {
    { "hidden" }, { "(kv group head_dim) hidden" }, { "(a:2 b) c" }, { "1 hidden 1" }, { "((a b:3) c) (d)" },
    { "a, b,c", "a b c" }, { " ( a,b )  c ", "(a b) c" }, { "(qkv heads head_dim)" },
    { repeated("(", 64) .. "a" .. repeated(")", 64) },
  }
  for _, case in ipairs(fine) do
    local items, err = notation.axis_list(case[1])
    local got = items and items_text(items) or err.pos .. " " .. err.message
    check(got == (case[2] or case[1]), "axis list " .. case[1], got)
  end
  local refused = {
    { "", 1, "expected an axis, found the end of the list" }, { "a ()", 4, "expected an axis, found ')'" },
    { "(a b", 1, "never closed" }, { "a) b", 2, "closes nothing" },
    { "a a", 3, "listed twice" }, { "(a b) (c a)", 10, "listed twice" },
    { "a 2", 3, "expected an axis, found '2'" }, { "a:0", 3, "a whole number from 1" },
    { "a:b", 3, "the size of the axis" }, { "a:99999999999", 3, "the size of the axis" },
    { ", a", 1, "expected an axis before ','" }, { "a,,b", 3, "expected an axis" }, { "a,", 3, "the end of the list" },
    { "sum b", 1, "a word of the notation" }, { "a -> b", 3, "unexpected '->'" }, { "a [b]", 3, "unexpected '['" },
    { "a é", 3, "not ASCII" }, { "a\nb", 2, "byte 0x0a" },
    { "a : 2 : 2", 7, "found ':'" }, { repeated("x", 65), 1, "64 letters" },
    { repeated("(", 65) .. "a" .. repeated(")", 65), 65, "64 open brackets" },
    { "a b c d e f g h i j k l m n o p q", 33, "16 axes" },
  }
  for _, case in ipairs(refused) do
    local ok, items, err = pcall(notation.axis_list, case[1])
    local fits = ok and not items and err.pos == case[2] and err.message:find(case[3], 1, true)
    local got = tostring(ok and err and err.pos .. " " .. err.message or items)
    check(fits, "axis list " .. case[1], "expected " .. case[2] .. " " .. case[3], "got " .. got)
  end
end

local function test_locate()
  local function at(text, pos) return ("%d:%d:%s"):format(notation.locate(text, pos)) end
  check(at("ab\ncd\n", 1) == "1:1:ab", "locate", "first")
  check(at("ab\ncd\n", 5) == "2:2:cd", "locate", "second line")
  check(at("ab\r\ncd", 5) == "2:1:cd", "locate", "after CRLF")
  check(at("ab\ncd", 6) == "2:3:cd", "locate", "end of the text")
  check(at("", 1) == "1:1:", "locate", "nothing")
end

local PIECES = {
  "(", ")", "[", "]", "{", "}", ",", ";", "=", "'", ":", "..", "+", "-", "*", "/", "^", "<", "<=", ">", "==", "~=",
  "\n", " ", "--", "\r\n", "and ", "or ", "not ", "grad ", "inf", "pi", "index(", "extent(", "sum[", "where(",
  "softmax[", "x", "seq", "key", "0", "1", "2.5", "1e", ".", "!", "\0", "\255", "−",
  "f(x) = ", "x' = ", "{seq = seq - 1}", "random[..]()",
}

local function mutate(text)
  for _ = 1, math.random(3) do
    local from = math.random(#text + 1)
    local to = math.min(#text + 1, from + math.random(0, 6))
    local kind = math.random(4)
    local piece = ""
    if kind == 2 then piece = PIECES[math.random(#PIECES)]
    elseif kind == 3 then
      local other = math.random(#text + 1)
      piece = text:sub(other, other + math.random(0, 20))
    elseif kind == 4 then to, piece = from, PIECES[math.random(#PIECES)] end
    text = text:sub(1, from - 1) .. piece .. text:sub(to)
  end
  return text
end

-- The library's definitions one by one (with all of it known but their own names), and the other texts whole.
local function fuzz_texts(accepted)
  local texts = {}
  for i, case in ipairs(accepted) do
    if i > 1 then texts[#texts + 1] = { text = case.text, known = case.name:find "alone" and {} or library } end
  end
  for definition in (accepted[1].text .. "\n\n"):gmatch "(.-)\n\n" do
    local known = {}
    for name, op in pairs(library) do
      if not definition:find(name, 1, true) then known[name] = op end
    end
    texts[#texts + 1] = { text = definition, known = known }
  end
  return texts
end

local function test_mutations(accepted, count)
  math.randomseed(20240601)
  local texts = fuzz_texts(accepted)
  local read_count, bad = 0, 0
  for _ = 1, count do
    local case = texts[math.random(#texts)]
    local text = mutate(case.text)
    local ok, ops, err = pcall(parse, text, case.known)
    if not ok and bad < 5 then check(false, "mutation", tostring(ops), ("%q"):format(text)) end
    bad = bad + (ok and 0 or 1)
    read_count = read_count + (ok and ops and 1 or 0)
    if ok and not ops then
      local _, again = notation.parse(text, case.known)
      if again.message ~= err.message then check(false, "mutation", "two messages for one text", text) end
    end
  end
  check(bad == 0, "mutations", bad .. " threw")
  check(read_count > count // 50, "mutations", "too few were read to test what is read", read_count)
end

local accepted = cases "accepted.txt"
test_accepted(accepted)
test_refused()
test_limits()
test_axis_lists()
test_locate()
test_mutations(accepted, 4000)
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0)
