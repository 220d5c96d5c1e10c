-- valid.lua SEQ: a text of spaces and other bytes below 65, in which (with --ignore 32) samples have unequal numbers of
-- targets that count. Written for 12 samples a step, of SEQ tokens each, in file order:
--   step 1: all of samples 0..5 are spaces: one of two data-parallel ranks has no target, if each takes six in a row
--   step 2: every second pair is spaces: micro-batches of two samples without a target
--   step 3: no target at all
--   step 4: sample i has i targets; step 5: one target in sample 7 alone
local seq = assert(tonumber(arg[1]))
local function random()  -- a small congruential generator: the same text everywhere
  local x = 1
  return function(limit) x = (x * 1103515245 + 12345) % 2147483648 return x // 65536 % limit end
end
local draw = random()
local function letter() return string.char(33 + draw(32)) end

-- The text of a step in which sample i has its first count(i) targets. Token 0 of a sample is its neighbour's last target,
-- and no target of its own.
local function step(count)
  local out = {}
  for i = 0, 11 do
    for t = 1, seq do out[#out + 1] = t <= count(i) and letter() or " " end
  end
  return table.concat(out)
end
io.write(letter(), step(function(i) return i < 6 and 0 or seq end), step(function(i) return i // 2 % 2 == 0 and 0 or seq end),
         step(function() return 0 end), step(function(i) return i end), step(function(i) return i == 7 and 1 or 0 end), " ")
