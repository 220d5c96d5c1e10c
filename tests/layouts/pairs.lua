-- pairs.lua [pairs|triples|full]: the layouts that grid.sh compares with one rank, one a line, "model=llama layers=4 ...".
--
-- pairs: a covering array: any two values of two options that may stand together do so in some line (most faults need
-- two options to meet). triples: any three. full: the whole grid. Greedy (Cohen et al., AETG): begin with the first
-- combination that no line has, then give each option the value that brings most new ones, of equals the one named
-- first: the ones with most parallelism. No randomness.
local options = {
  { "model", "llama", "llama-tied", "llama-kv2", "gpt2" },
  { "layers", 4, 5, 7, 9 },                   -- 9: interleaved on 4 stages needs 8
  { "vocab", 65, 256 },                       -- 65: padded
  { "tp", 2, 4, 1 }, { "pp", 2, 3, 4, 1 }, { "dp", 2, 3, 1 },
  { "sp", "on", "off" }, { "schedule", "1f1b", "zb", "interleaved", "afab" },
  { "zero", 1, 0 }, { "accum", 3, 1, 2, 8 },  -- accum: micro-batches of one dp rank
}

-- What may stand together; an option without a value yet forbids nothing. What would be the same layout by two names
-- (sp without tp, a schedule without stages) has one.
local function legal(r)
  if r.tp == 1 and r.sp == "on" then return false end
  if r.pp == 1 and r.schedule and r.schedule ~= "1f1b" then return false end
  if r.tp == 1 and r.dp == 1 and r.zero == 1 then return false end
  if r.schedule == "interleaved" and r.layers and r.layers < 2 * (r.pp or 2) then return false end
  return (r.tp or 1) * (r.pp or 1) * (r.dp or 1) <= 24
end

local function show(r)
  local words = {}
  for _, o in ipairs(options) do words[#words + 1] = o[1] .. "=" .. r[o[1]] end
  return table.concat(words, " ")
end

local function full(i, r)
  if i > #options then print(show(r)) return end
  local name = options[i][1]
  for v = 2, #options[i] do
    r[name] = options[i][v]
    if legal(r) then full(i + 1, r) end
  end
  r[name] = nil
end

-- All lists of `size` different options, as ascending indices.
local function subsets(size, from, chosen, out)
  if #chosen == size then out[#out + 1] = { table.unpack(chosen) } return out end
  for i = from, #options do
    chosen[#chosen + 1] = i
    subsets(size, i + 1, chosen, out)
    chosen[#chosen] = nil
  end
  return out
end

local sets, open, order = nil, {}, {}  -- open[key]: no line has this combination yet

local function key_of(set, r)
  local words = {}
  for n, i in ipairs(set) do
    local v = r[options[i][1]]
    if v == nil then return nil end
    words[n] = i .. "=" .. v
  end
  return table.concat(words, " ")
end

local function list_combinations(set, n, r)
  if n > #set then
    local key, copy = key_of(set, r), {}
    for k, v in pairs(r) do copy[k] = v end
    open[key] = true
    order[#order + 1] = { key = key, row = copy }
    return
  end
  local o = options[set[n]]
  for v = 2, #o do
    r[o[1]] = o[v]
    if legal(r) then list_combinations(set, n + 1, r) end
  end
  r[o[1]] = nil
end

local function gain(r)
  local n = 0
  for _, set in ipairs(sets) do
    local key = key_of(set, r)
    if key and open[key] then n = n + 1 end
  end
  return n
end

-- Gives all other options their values, the best first; false if no line has what r has.
local function complete(r)
  local name, best
  for _, o in ipairs(options) do
    if r[o[1]] == nil then name, best = o[1], o break end
  end
  if not name then return true end
  local tries = {}
  for v = 2, #best do
    r[name] = best[v]
    if legal(r) then tries[#tries + 1] = { value = best[v], gain = gain(r), at = v } end
  end
  table.sort(tries, function(a, b) return a.gain > b.gain or a.gain == b.gain and a.at < b.at end)
  for _, t in ipairs(tries) do
    r[name] = t.value
    if complete(r) then return true end
  end
  r[name] = nil
  return false
end

local function covering(size)
  sets = subsets(size, 1, {}, {})
  for _, set in ipairs(sets) do list_combinations(set, 1, {}) end
  for _, c in ipairs(order) do
    if open[c.key] and complete(c.row) then
      print(show(c.row))
      for _, set in ipairs(sets) do open[key_of(set, c.row)] = nil end
    end
  end
end

local what = arg[1] or "pairs"
if what == "full" then full(1, {})
elseif what == "pairs" then covering(2)
elseif what == "triples" then covering(3)
else io.stderr:write("usage: pairs.lua [pairs|triples|full]\n") os.exit(2) end
