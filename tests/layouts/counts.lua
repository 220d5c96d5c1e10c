-- counts.lua WHAT REPORT.json ...: checks the report of picoc --report=FILE.json. Prints a line for each fault.
--   formula L sp|nosp none|full MICRO_BATCHES   collectives of L layers, as the design promises them
--   same COUNTS.json                            what picorun --counts counted in a step, and the arenas
--   slots                                       slots of FB, FW, BW for the schedule
--   saved T REPORT1                             what a layer leaves for backward is 1/T of that of REPORT1
--   zero REPORT0                                optimizer states are divided as --zero 1 promises; REPORT0: without it
--   memory MB THREADS                           the most a rank allocates, as picorun tells it
-- The reader below knows the JSON that the two programs write.
local function read_json(path)
  local file = assert(io.open(path))
  local s, at = file:read("a"), 1
  file:close()
  local value
  local function space() at = s:find("[^%s]", at) or #s + 1 end
  local function list(close, item)
    at = at + 1
    space()
    while s:sub(at, at) ~= close do
      item()
      space()
      if s:sub(at, at) == "," then at = at + 1 space() end
    end
    at = at + 1
  end
  local function text()
    local first, last = s:find('^"[^"\\]*"', at)
    if not first then first, last = at, at repeat last = s:find('"', last + 1, true) until s:sub(last - 1, last - 1) ~= "\\" end
    at = last + 1
    return s:sub(first + 1, last - 1)
  end
  function value()
    space()
    local c, t = s:sub(at, at), {}
    if c == "{" then
      list("}", function() local key = text() space() at = at + 1 t[key] = value() end)
      return t
    elseif c == "[" then
      list("]", function() t[#t + 1] = value() end)
      return t
    elseif c == '"' then return text() end
    local first, last = s:find("^[%w+.-]+", at)
    at = last + 1
    local word = s:sub(first, last)
    if word == "true" or word == "false" then return word == "true" end
    return tonumber(word)
  end
  return value()
end

local function expect(what, got, want)
  if got ~= want then print(("%s: %s, not %s"):format(what, tostring(got), tostring(want))) end
end
local function near(what, got, want, relative)
  if not (math.abs(got - want) <= relative * math.abs(want)) then
    print(("%s: %.9g, not %.9g within %g"):format(what, got, want, relative))
  end
end

local what, path = arg[1], arg[2]
local report = read_json(path)
local checks = {}

-- Numbers of one micro-batch, over all stages. Large: whole activations [batch, seq, hidden], the others are [batch, seq].
--
-- Under sp the design says (2L+1) all-gathers again in backward, here it is 2L: the head, its loss and their gradients run
-- in one stretch, so that the head's gather serves both. With full recomputation the layers but the last make one sum again,
-- that of attention; what ends the layer is the next one's input, which is kept. The last layer runs once, all of it in
-- backward, as nothing forward reads it: so forward has two sums and two gathers less, and L-1 sums come on top.
function checks.formula(layers, sp, recompute, micro_batches)
  local L, n, large = tonumber(layers), {}, 0
  local full = recompute == "full"
  local function each(f)
    for _, stage in ipairs(report.stages) do for _, c in ipairs(stage.collectives) do f(c) end end
  end
  each(function(c) if c.phase ~= "step" then large = math.max(large, c.bytes_each) end end)
  each(function(c)
    if c.phase == "step" then
      if c.kind ~= "all_reduce" then print("a step has " .. c.kind .. " over " .. c.group) end
      return
    end
    local key = ("%s %s %s"):format(c.phase == "forward" and c.phase or "backward", c.bytes_each == large and "large" or "small", c.kind)
    expect("group of " .. key, c.group, "tp")
    expect("a step's " .. key, c.per_step, c.per_micro_batch * tonumber(micro_batches))
    n[key] = (n[key] or 0) + c.per_micro_batch
  end)
  local forward, backward = 2 * L + 1, 2 * L + 1
  if full then forward, backward = 2 * L - 1, 2 * L + 1 + 2 + L - 1 end
  local want = { ["forward small all_reduce"] = 3 }
  if sp == "sp" then
    want["forward large reduce_scatter"], want["forward large all_gather"] = forward, forward
    want["backward large reduce_scatter"], want["backward large all_gather"] = backward, 2 * L + 1 + 2 * L
  else
    want["forward large all_reduce"], want["backward large all_reduce"] = forward, backward
  end
  for key, v in pairs(want) do expect(key, n[key] or 0, v) end
  for key, v in pairs(n) do if not want[key] then expect(key, v, 0) end end
end

-- "kv x dp" as the report calls it: without factors of size 1, and tp where only one of its two splits.
local function group_name(name)
  local words, size = {}, report.mesh
  local stages = name:match(" of stages .*$") or ""
  for word in name:sub(1, #name - #stages):gmatch("%l+") do
    if word == "x" then goto next end
    if size[word] == 1 then goto next end
    if (word == "kv" and size.group == 1) or (word == "group" and size.kv == 1) then word = "tp" end
    words[#words + 1] = word
    ::next::
  end
  return table.concat(words, " x ") .. stages
end

local function sums(list, name, count, bytes)
  local n = {}
  for _, c in ipairs(list) do
    local key = name(c.group) .. " " .. c.kind
    n[key] = n[key] or { 0, 0 }
    n[key][1], n[key][2] = n[key][1] + c[count], n[key][2] + c[bytes]
  end
  return n
end

local function same_tables(what, a, b)
  for key, x in pairs(a) do
    for i, v in ipairs(x) do expect(what .. key .. (i == 1 and "" or ", bytes"), v, b[key] and b[key][i]) end
  end
  for key in pairs(b) do if not a[key] then print(what .. key .. ": not in the report") end end
end

local function same_stage(at, said, got)
  expect(at .. "memory", said.memory.total, got.memory)
  expect(at .. "arenas", #said.memory.arenas, #got.arenas)
  for i, a in ipairs(said.memory.arenas) do
    for _, key in ipairs { "class", "chunk", "slots", "bytes" } do
      expect(("%sarena %d, %s"):format(at, i, key), a[key], got.arenas[i] and got.arenas[i][key])
    end
  end
  expect(at .. "launches", said.launches_per_step, got.kernels.count + got.gemms.count)
  same_tables(at, sums(said.collectives, function(s) return s end, "per_step", "bytes_per_step"),
    sums(got.collectives, group_name, "count", "bytes"))
  expect(at .. "transfers", #said.transfers, #got.transfers)
  for i, t in ipairs(said.transfers) do
    local u = got.transfers[i] or {}
    expect(at .. "transfer", ("%s %s %s %s"):format(t.tag, t.send, t.per_step, t.bytes_per_step),
      ("%s %s %s %s"):format(u.tag, u.send, u.count, u.bytes))
  end
end

function checks.same(counts_path)
  local counts = read_json(counts_path)
  expect("ranks", report.ranks, counts.ranks)
  expect("stages", #report.stages, #counts.stages)
  local all = {}
  for i, got in ipairs(counts.stages) do
    same_stage(("stage %d: "):format(i - 1), report.stages[i], got)
    for _, c in ipairs(got.collectives) do all[#all + 1] = c end
  end
  same_tables("all stages: ", sums(report.collectives, function(s) return s end, "per_step", "bytes_per_step"),
    sums(all, group_name, "count", "bytes"))
end

function checks.slots()
  local m, p, kind = report.schedule.micro_batches, report.mesh.pp, report.schedule.name
  for _, stage in ipairs(report.stages) do
    local s, want = stage.stage, {}
    if kind == "1f1b" or kind == "zb" then want.FB = math.min(m, p - s) end
    if kind == "zb" then want.FW, want.BW = math.min(m, p), math.min(m, s + 1) end
    for _, a in ipairs(stage.memory.arenas) do
      if want[a.class] then
        expect(("%s, %d of %d stages, %d micro-batches: slots of %s"):format(kind, s, p, m, a.class), a.slots, want[a.class])
      end
      want[a.class] = nil
    end
    for class in pairs(want) do print(("stage %d has nothing of class %s"):format(s, class)) end
  end
end

function checks.saved(t, other_path)
  local whole, here, n = read_json(other_path), {}, 0
  for _, x in ipairs(report.stages[1].memory.saved_per_micro_batch) do here[x.layer] = x.bytes end
  for _, x in ipairs(whole.stages[1].memory.saved_per_micro_batch) do
    if x.layer >= 0 then
      near(("layer %d saves for backward"):format(x.layer), here[x.layer] or 0, x.bytes / tonumber(t), 0.02)
      n = n + 1
    end
  end
  if n < 2 then print("no layers are saved") end
end

local function bucket_bytes(buckets)
  local n = 0
  for _, b in ipairs(buckets) do n = n + b.bytes end
  return n
end

-- m and v of matrices are cut over dp; those of gains, whose gradients tp sums too (sp), over both.
function checks.zero(other_path)
  local whole = read_json(other_path)
  for i, stage in ipairs(report.stages) do
    local params, optimizer = whole.stages[i].parameters, 0
    local dp, tp = report.mesh.dp, report.mesh.sequence_parallel and report.mesh.tp or 1
    for _, b in ipairs(whole.stages[i].buckets) do optimizer = optimizer + 2 * b.bytes / b.ranks end
    if dp > 1 then expect("gradients in buckets", bucket_bytes(whole.stages[i].buckets), 4 * params) end
    near(("stage %d: optimizer states, zero 1 over dp %d, tp %d"):format(i - 1, dp, tp), stage.memory.persist.optimizer, optimizer, 0.02)
    near(("stage %d: optimizer states, zero 0"):format(i - 1), whole.stages[i].memory.persist.optimizer, 8 * params, 0.001)
  end
end

function checks.memory(mb, threads)
  local most = 0
  for _, stage in ipairs(report.stages) do
    most = math.max(most, stage.memory.total + threads * stage.memory.scratch_per_thread)
  end
  near("MB of a rank", tonumber(mb), most / 1e6, 0.01)
end

checks[what](table.unpack(arg, 3))
